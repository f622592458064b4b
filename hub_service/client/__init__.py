"""Typed client of the API: `Client` blocks, `AsyncClient` is awaited."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runai.hub_service.client.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  any attribute of a module
    """Import the client when it is used: the status line of a prompt does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runai.hub_service.client import client  # noqa: PLC0415

    return getattr(client, name)
