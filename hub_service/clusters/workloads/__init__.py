"""A cluster that stores workloads itself: index, snapshot, plan execution."""
