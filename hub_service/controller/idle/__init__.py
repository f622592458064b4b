"""Idle GPUs: detection, warnings to owners, and release to other workloads.

`decision` has the pure rules, `watch` carries them out.
"""
