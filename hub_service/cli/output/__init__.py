"""Output of the command line: tables, live screen, spinner."""
