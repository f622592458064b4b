"""Agent of one node: meter each process's use of each device, and attribute it to a workload."""
