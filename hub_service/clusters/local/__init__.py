"""This machine as a cluster: SQLite as the state of record, processes as workers."""
