"""Routes of the REST API."""
