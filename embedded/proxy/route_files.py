"""JupyterHub's routes as files, which Caddy looks up for each request.

The route `/user/ana/` to `http://127.0.0.1:1234` is the file `@/-user/-ana/=127.0.0.1:1234`; a
host's `ana.example.org/user/ana/` is below `@ana.example.org/`. The file contains the route's
`data`. Changes need no reload.
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from runai.embedded.proxy.public_address import host_and_port
from runai.hub_service.wire.errors import InvalidRequest

MOST_BYTES = 254  # of a segment: file names have 255, including our prefix


def path_segments(path: str) -> tuple[str, ...]:
    """Split a raw path, then decode its segments.

    >>> path_segments("/user/caf%C3%A9/")
    ('user', 'café')
    >>> path_segments("/")
    ()
    """
    return tuple(unquote(segment) for segment in path.split("/") if segment)


class RouteFiles:
    """One folder of routes of at most `depth` segments."""

    def __init__(self, folder: Path, depth: int) -> None:
        self._folder = folder
        self._depth = depth

    def add(self, routespec: str, target: str, data: dict[str, Any]) -> None:
        """Store a route, or replace its target without a gap.

        Raises:
            InvalidRequest: Caddy could not find the route or reach its target.
        """
        folder = self._folder_of(routespec)
        file = folder / f"={_checked_server(routespec, target)}"
        route = {"routespec": routespec, "target": target, "data": data}
        partial = folder / ".partial"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replaced = {*folder.glob("=*")} - {file}
            partial.write_text(json.dumps(route))
            partial.replace(file)
        except OSError as failed:
            self._remove_empty(folder)
            raise InvalidRequest(
                f"The route {routespec} cannot be stored: {failed.strerror}.",
                hint="Is there room on the disk?",
            ) from failed
        for old in replaced:
            old.unlink()

    def remove(self, routespec: str) -> None:
        """Remove a route if it exists."""
        try:
            folder = self._folder_of(routespec)
        except InvalidRequest:  # it was never stored
            return
        for file in folder.glob("=*"):
            file.unlink()
        self._remove_empty(folder)

    def all(self) -> dict[str, dict[str, Any]]:
        """Return the routes by specification, letter for letter as they were added."""
        # A killed hub may leave two files of one route: Caddy uses the first by name.
        routes = {}
        for file in sorted(self._folder.rglob("=*"), reverse=True):
            with suppress(ValueError, LookupError, TypeError):  # damaged: the hub adds it again
                route = json.loads(file.read_bytes())
                routes[route["routespec"]] = route
        return routes

    def clear(self) -> None:
        """Remove all routes: their ports may belong to other users by now."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def _folder_of(self, routespec: str) -> Path:
        """Return the folder of a route's file.

        Raises:
            InvalidRequest: its path is too long for files.
        """
        host, slash, path = routespec.partition("/")
        segments = path_segments(slash + path)
        if len(segments) > self._depth or not all(_is_file_name(s) for s in segments):
            raise InvalidRequest(
                f"The route {routespec} cannot be served.",
                hint=f"It may have {self._depth} segments of {MOST_BYTES} bytes, without slashes.",
            )
        return self._folder.joinpath(f"@{host.lower()}", *(f"-{segment}" for segment in segments))

    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder and its parents, up to the first that is not empty."""
        with suppress(OSError):  # not empty
            while folder != self._folder:
                folder.rmdir()
                folder = folder.parent


def _is_file_name(segment: str) -> bool:
    return not {"/", "\0"} & {*segment} and len(segment.encode()) <= MOST_BYTES


def _checked_server(routespec: str, target: str) -> str:
    """Return `HOST:PORT` of a target.

    Raises:
        InvalidRequest: it is no plain HTTP address.
    """
    url = urlsplit(target)
    with suppress(ValueError):  # a port that is no number
        plain = url.scheme == "http" and url.path in {"", "/"} and not (url.query or url.fragment)
        if plain and url.hostname and "@" not in url.netloc:
            return host_and_port(target)
    raise InvalidRequest(
        f"The route {routespec} leads to {target}, which the proxy cannot serve.",
        hint="A target is http://HOST:PORT, without a path, TLS or a socket.",
    )
