"""Meter one node: which process uses which device, how much, and for which workload."""
