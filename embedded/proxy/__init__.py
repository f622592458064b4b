"""JupyterHub proxy: a Caddy process and its routes."""
