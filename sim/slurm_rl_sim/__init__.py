"""The simulator: replays a trace through the policies that order a live queue."""
