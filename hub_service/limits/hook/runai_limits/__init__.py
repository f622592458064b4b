"""Memory limits inside a workload's processes, set through its frameworks."""
