"""Unix accounts of `--system-users`: lookups, limits, and who is known by which uid."""
