"""A plain, slow simulator written from the rules in docs/backfill.md: the witness that the compiled one is held to."""
