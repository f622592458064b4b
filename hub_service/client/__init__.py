"""Typed client of the API: `Client` blocks, `AsyncClient` is awaited."""

from runai.hub_service.client.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
