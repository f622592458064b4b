"""Device sources of a node: NVML or simulated."""
