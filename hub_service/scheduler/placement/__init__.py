"""Placement: which workload is next, whether it fits, and on which devices."""
