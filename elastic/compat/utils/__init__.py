"""The small tools that the original library exported."""
