"""ASGI middleware: body size, rate limit, request log."""
