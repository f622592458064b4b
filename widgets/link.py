"""This kernel's link to the platform: connection, client, and event stream.

`link()` finds the platform at first use; all views and actions share it. `connect` replaces it, for
another platform or user.
"""

import os
import threading
from collections.abc import Generator, Mapping, Sequence
from urllib.parse import urlsplit

from runai.hub_service.client import AsyncClient, Client
from runai.hub_service.client.array_lines import named
from runai.hub_service.client.connection import Connection, ConnectionSource, find_connection
from runai.hub_service.processes.per_process import PerProcess
from runai.hub_service.wire.errors import InvalidRequest, NotFound
from runai.hub_service.wire.schemas import Overview, WhoAmI, WorkloadView
from runai.widgets.live import Live
from runai.widgets.wording import did_you_mean


class Link:
    """One connection to the platform, with its client and live events."""

    def __init__(
        self,
        connection: Connection,
        environ: Mapping[str, str] = os.environ,
        *,
        source: ConnectionSource | None = None,
    ) -> None:
        """Store the connection; no request is made yet. None: its token has no other source."""
        self.connection, self._source = connection, source
        self.client = Client(
            connection.url,
            connection.token,
            default_project=connection.project,
            ca=connection.ca,
            source=source,
        )
        version = source.version if source is not None else None
        self._live = PerProcess(lambda: Live(self._events, version))
        self._in_hub = "JUPYTERHUB_SERVICE_PREFIX" in environ

    @property
    def live(self) -> Live:
        """Return this process's live events."""
        return self._live.get()

    def awaitable_client(self) -> AsyncClient:
        """Return an async client of the same user, for one `async with`."""
        connection = self.connection
        return AsyncClient(connection.url, connection.token, ca=connection.ca, source=self._source)

    @property
    def was_found(self) -> bool:
        """Return True if the connection is that of the session or of `runai login`."""
        return self._source is not None

    def whoami(self) -> WhoAmI:
        """Return the caller's current identity and projects."""
        return self.client.whoami()

    @property
    def page_path(self) -> str:
        """Return the path under which the browser reaches the service, or "" outside JupyterHub.

        Inside a session the notebook's page and the service share the hub's origin.
        """
        return urlsplit(self.client.url).path if self._in_hub else ""

    def find_all(self, names: Sequence[str]) -> list[WorkloadView]:
        """Return the workloads of these names, each once; names work as on the command line.

        Raises:
            NotFound: no workload of a name is visible to the caller.
            InvalidRequest: several projects have one, and none of them is preferred.
        """
        visible = self.client.workloads()
        found = (self._choose(visible, name) for name in names)
        return list({view.id: view for view in found}.values())

    def _choose(self, visible: Sequence[WorkloadView], name: str) -> WorkloadView:
        """Return the workload of a name; prefer one that the caller may change."""
        matching = named(visible, name)
        if len(matching) > 1:
            # The default project first, then workloads that the caller may change.
            at_home = [view for view in matching if view.project == self.client.default_project]
            matching = at_home or [view for view in matching if view.manageable] or matching
        if len(matching) > 1:
            ids = sorted(view.id for view in matching)
            raise InvalidRequest(f"{name} is in several projects.", hint=f"Say {' or '.join(ids)}.")
        if not matching:
            near = did_you_mean(name, [view.name for view in visible])
            raise NotFound(
                f"There is no workload {name} that you may see.",
                hint=near or "%runai_list shows those there are.",
            )
        return matching[0]

    def _events(self) -> Generator[Overview]:
        """Yield events from a new client, which belongs to the reading thread."""
        url, token, ca = self.connection.url, self.connection.token, self.connection.ca
        with Client(url, token, ca=ca, source=self._source) as client:
            yield from client.events()

    def close(self) -> None:
        """Stop listening and close the connections."""
        if (live := self._live.existing()) is not None:
            live.close()
        self.client.close()


_lock = PerProcess(threading.Lock)
_links: list[Link] = []  # at most one element


def link() -> Link:
    """Return this kernel's link: the session's, else `runai login`'s; found at first use."""
    with _lock.get():
        if not _links:
            _links.append(Link(find_connection(), source=ConnectionSource()))
        return _links[0]


def connect(url: str, token: str, *, project: str | None = None) -> Link:
    """Connect this kernel to a platform as the token's owner, replacing the previous link.

    Open views keep the previous link until they are closed or their cell runs again.
    """
    made = Link(Connection(url, token, project))
    with _lock.get():
        _links[:] = [made]
    return made
