"""Snapshot of a Kubernetes cluster for the scheduler."""
