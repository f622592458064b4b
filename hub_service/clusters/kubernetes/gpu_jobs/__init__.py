"""Submitted jobs as resources `GpuJob`: what was asked, and the rows of its workloads."""
