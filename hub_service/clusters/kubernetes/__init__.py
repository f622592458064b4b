"""A Kubernetes cluster: its API server is the state of record, and we are one of its schedulers."""
