"""Workloads on Kubernetes: records, logs, exec, elastic jobs, projects."""
