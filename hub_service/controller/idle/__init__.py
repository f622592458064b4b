"""Idle GPUs: detection, warnings to owners, and release to other workloads.

`idleness` has the pure rules, `idle_watch` carries them out.
"""
