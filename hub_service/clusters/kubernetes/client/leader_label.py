"""What the pod of the service shows its cluster: that it lives, and whether it leads.

Whoever waits to lead is as healthy as the leader, but must get no requests: so the pod is ready in
both cases, and its Service picks the one whose label says that it leads. Called by
`kubernetes_service`; outside a pod there is nothing to show.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError

LOG = logging.getLogger("runai.service")

LEADS = "runai/leads"
SHOWN_WITHIN_S = 4.0
"""Less than a Lease has left when its leader gives up."""
_ALIVE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class OwnPod:
    """The pod that this process runs in; without a name it runs in none."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        """Show nothing yet."""
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods/{name}" if name else ""

    async def shows(self, *, leads: bool) -> None:
        """Have requests sent here, or no longer.

        Raises:
            ApiError: nobody would find the leader; who does not lead is left to be found in vain.
            TimeoutError: the same.
        """
        if not self._path:
            return
        label = {LEADS: "true" if leads else None}
        try:
            async with asyncio.timeout(SHOWN_WITHIN_S):
                await self._api.patch(self._path, {"metadata": {"labels": label}})
        except (ApiError, TimeoutError) as error:
            if leads:
                raise
            # The next leader is shown beside us, and we refuse connections.
            LOG.warning("the pod could not be told that it does not lead: %s", error)


@contextlib.asynccontextmanager
async def answering(host: str, port: int) -> AsyncGenerator[None]:
    """Answer every probe with 200 for as long as this process's loop turns; port 0: do not."""
    if not port:
        yield
        return
    async with await asyncio.start_server(_answer, host, port) as server:
        del server
        yield


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_ALIVE)
        await writer.drain()
    writer.close()
