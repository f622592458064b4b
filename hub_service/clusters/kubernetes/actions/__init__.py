"""Plan execution on the API server: bind, evict, suspend, back off."""
