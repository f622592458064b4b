"""View models: what each caller may see of the cluster."""
