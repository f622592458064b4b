"""Backup and restore of the embedded platform."""
