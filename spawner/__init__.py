"""JupyterHub spawners that start each server as a build session."""
