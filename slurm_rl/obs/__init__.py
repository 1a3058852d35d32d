"""What the live side tells about itself: logs, metrics, the journal, and the last tick's view of the queue."""
