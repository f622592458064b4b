"""Shared devices: reservation pods."""
