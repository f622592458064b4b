"""The one-command platform: JupyterHub, proxy and service wired together on one machine."""
