"""Conditions and Events on pods."""
