"""How compiled code is written here: compilation, records, tables, the World, calls by address (docs/kernels.md)."""
