"""Puts this directory on the import path: `builders` and `reference` serve tests of several directories."""
