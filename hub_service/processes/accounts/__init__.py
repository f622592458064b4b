"""Unix accounts of `--system-users`: lookups, and who is known by which uid."""
