"""Schema changes of cluster.sqlite, run by `store` when there are any."""
