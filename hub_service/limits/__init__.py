"""Keep a workload within its share of a device's memory, and say how strictly it is kept."""
