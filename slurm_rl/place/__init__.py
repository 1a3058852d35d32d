"""Which nodes a job takes."""
