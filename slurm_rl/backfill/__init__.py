"""Decides which jobs of an ordered queue start now: one file per rule, one row in `catalogue.py` (docs/backfill.md)."""
