"""Kubernetes objects as types: pods, nodes, Jobs, projects, volumes."""
