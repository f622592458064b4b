"""Agent of one node: it meters each process on each device, for its workload."""
