"""Which jobs of an ordered queue start now: one file a rule, one row each in `catalogue.py` (docs/backfill.md)."""
