"""HTML pages, their templates and assets."""
