"""Processes on a node: which workload each belongs to, and its load."""
