"""Training and evaluation of learned policies."""
