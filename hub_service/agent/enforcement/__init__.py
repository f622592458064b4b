"""Enforcement of memory limits, and release of devices."""
