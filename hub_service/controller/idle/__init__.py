"""Idle GPUs: when an allocation counts as idle, who is told, and when it is given to others.

`rules` is what a project sets, `machine` the pure decisions, `watch` the thin shell that carries
them out, `culler` lets jupyterhub-idle-culler ask us before it stops a server.
"""
