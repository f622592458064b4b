"""Detached supervisor of one worker: programs that outlive the service."""
