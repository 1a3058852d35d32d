"""Readers and writers of workload traces."""
