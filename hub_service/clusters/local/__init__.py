"""This machine as a cluster: SQLite for the truth, processes for the work."""
