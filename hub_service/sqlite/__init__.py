"""SQLite database files: open, check, copy, upgrade."""
