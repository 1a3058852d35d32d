"""How policies are compared and fitted to a site: paired windows, confidence intervals, styles; no torch."""
