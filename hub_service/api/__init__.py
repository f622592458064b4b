"""The platform over HTTP: REST, OpenAPI, server-sent events and the page "GPUs"."""
