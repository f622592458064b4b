"""Kubernetes backend: the API server stores all state; the service is a scheduler."""
