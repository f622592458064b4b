"""This kernel's one link to the platform: who asks, the client, and the thread that listens.

Everything that the notebook shows or does goes through `link()`; it finds the platform by itself
at first use. `connect` replaces it (another platform, another user). Holds no state of workloads.
"""

import os
import threading
from collections.abc import Generator, Mapping, Sequence
from urllib.parse import urlsplit

from runai.hub_service.client import AsyncClient, Client
from runai.hub_service.client.connection import Connection, find_connection
from runai.hub_service.wire.errors import InvalidRequest, NotFound
from runai.hub_service.wire.schemas import Overview, WhoAmI, WorkloadView
from runai.widgets.live import Live
from runai.widgets.wording import did_you_mean


class Link:
    """A connection with what is made of it once: client and live events."""

    def __init__(self, connection: Connection, environ: Mapping[str, str] = os.environ) -> None:
        """Keep the connection; nothing is sent before it is needed."""
        self.connection = connection
        self.client = Client(
            connection.url,
            connection.token,
            default_project=connection.project,
            ca=connection.ca,
        )
        self.live = Live(self._events)
        self._in_hub = "JUPYTERHUB_SERVICE_PREFIX" in environ

    def awaitable_client(self) -> AsyncClient:
        """Return a client for one `async with`, of the same user."""
        return AsyncClient(self.connection.url, self.connection.token, ca=self.connection.ca)

    def whoami(self) -> WhoAmI:
        """Return the caller as the service sees them now: memberships change."""
        return self.client.whoami()

    @property
    def page_path(self) -> str:
        """Return the path under which the browser reaches the service, or "" outside JupyterHub.

        Inside a session the notebook's page and the service share the hub's origin.
        """
        return urlsplit(self.client.url).path if self._in_hub else ""

    def find_all(self, names: Sequence[str]) -> list[WorkloadView]:
        """Return the workloads of these names, each once; as the command line understands names.

        Raises:
            NotFound: nothing of a name is visible to the caller.
            InvalidRequest: several projects have one, and none of them is preferred.
        """
        visible = self.client.workloads()
        found = (self._choose(visible, name) for name in names)
        return list({view.id: view for view in found}.values())

    def _choose(self, visible: Sequence[WorkloadView], name: str) -> WorkloadView:
        named = [view for view in visible if name in {view.id, view.name}]
        if len(named) > 1:
            # One's own default project first, then what one may change.
            at_home = [view for view in named if view.project == self.client.default_project]
            named = at_home or [view for view in named if view.mine] or named
        if len(named) > 1:
            ids = sorted(view.id for view in named)
            raise InvalidRequest(f"{name} is in several projects.", hint=f"Say {' or '.join(ids)}.")
        if not named:
            near = did_you_mean(name, [view.name for view in visible])
            raise NotFound(
                f"There is no workload {name} that you may see.",
                hint=near or "%runai_list shows those there are.",
            )
        return named[0]

    def _events(self) -> Generator[Overview]:
        """Listen by a client of its own, which belongs to the thread that reads."""
        with Client(self.connection.url, self.connection.token, ca=self.connection.ca) as client:
            yield from client.events()

    def close(self) -> None:
        """Stop listening and close the connections."""
        self.live.close()
        self.client.close()


_lock = threading.Lock()
_links: list[Link] = []  # at most one: this kernel's


def link() -> Link:
    """Return this kernel's link, found at first use: the session's, else that of `runai login`."""
    with _lock:
        if not _links:
            _links.append(Link(find_connection()))
        return _links[0]


def connect(url: str, token: str, *, project: str | None = None) -> Link:
    """Use this platform from now on, as the token's owner; needed where none is found by itself.

    What is already shown goes on showing the former one until it is closed or run again.
    """
    made = Link(Connection(url, token, project))
    with _lock:
        _links[:] = [made]
    return made
