"""A JupyterHub server start becomes a build session."""
