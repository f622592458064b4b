"""`cluster.sqlite`: workloads and projects of the local cluster."""
