"""Domain model of the service: projects, workloads, devices, and the cluster contract."""
