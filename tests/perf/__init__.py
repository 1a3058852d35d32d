"""Speed, measured: what `make bench` runs."""
