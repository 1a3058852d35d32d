"""Observability of the live side: logs, metrics, the journal, and the last tick's view of the queue."""
