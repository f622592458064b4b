"""Plan execution on the API server: bind, evict, back off."""
