"""Kubernetes backend: the API server stores all state, and the service is one of its schedulers."""
