"""Which server answers a path: the proxy's table of routes.

Route specifications are JupyterHub's: `/user/ana/`, or `host.tld/user/ana/` with a host. Paths may
be percent-encoded, there and in requests, not always alike: segments are compared decoded. Knows
nothing of HTTP. Used by `runai.embedded.proxy`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

__all__ = ["Route", "RouteTable", "path_segments"]


def path_segments(path: str) -> tuple[str, ...]:
    """Split a raw path, then decode: an encoded slash stays inside its segment.

    >>> path_segments("/user/a%2Fb/caf%C3%A9/?x=1")
    ('user', 'a/b', 'café')
    >>> path_segments("/")
    ()
    """
    bare = path.split("?", 1)[0]
    return tuple(unquote(segment) for segment in bare.split("/") if segment)


@dataclass(slots=True)
class Route:
    """Where requests below a prefix go, and when one last did."""

    routespec: str
    target: str
    attached: Mapping[str, Any] = field(default_factory=dict)
    """What JupyterHub attached to it (its "data"): the user and server, or the service."""
    last_activity: datetime = field(default_factory=lambda: datetime.now(UTC))

    def touch(self) -> None:
        """Remember that somebody used it just now."""
        self.last_activity = datetime.now(UTC)

    def view(self) -> dict[str, Any]:
        """Return the form that JupyterHub reads (`Proxy.get_all_routes`)."""
        return {
            "routespec": self.routespec,
            "target": self.target,
            "data": {**self.attached, "last_activity": self.last_activity.isoformat()},
        }


class RouteTable:
    """Find the longest route whose path is a prefix of a request's, whole segments only."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, tuple[str, ...]], Route] = {}

    def add(self, routespec: str, target: str, attached: Mapping[str, Any]) -> None:
        """Add a route, or give an existing one a new target."""
        self._routes[_key(routespec)] = Route(routespec, target, dict(attached))

    def remove(self, routespec: str) -> bool:
        """Forget a route; return whether there was one."""
        return self._routes.pop(_key(routespec), None) is not None

    def match(self, host: str, path: str) -> Route | None:
        """Return the route of a request, None when nothing answers there.

        A route with a host comes before one without; `host` may carry a port.
        """
        segments = path_segments(path)
        name = _hostname(host)
        for routed_host in (name, "") if name else ("",):
            for length in range(len(segments), -1, -1):
                if route := self._routes.get((routed_host, segments[:length])):
                    return route
        return None

    def views(self) -> dict[str, dict[str, Any]]:
        """Return all routes by their specification, as JupyterHub reads them."""
        return {route.routespec: route.view() for route in self._routes.values()}


def _key(routespec: str) -> tuple[str, tuple[str, ...]]:
    host, slash, path = routespec.partition("/")
    return host.lower(), path_segments(slash + path)


def _hostname(host: str) -> str:
    """Drop the port; an IPv6 address keeps its brackets."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
