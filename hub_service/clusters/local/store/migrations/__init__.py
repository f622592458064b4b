"""Schema migrations of cluster.sqlite, run by `workload_store` when there are any."""
