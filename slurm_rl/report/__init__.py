"""The report of a replay: a self-contained page, and its charts as files."""
