"""Files of jobs: logs, progress, elastic messages, cleanup."""
