"""Chooses the nodes of a job."""
