"""Toy rules that are added through the seams alone, as CONTRIBUTING.md tells it: a row and a kernel each."""
