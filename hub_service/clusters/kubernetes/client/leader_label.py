"""Pod label that marks the leader, and the service's liveness probe.

A standby replica is as healthy as the leader but must receive no requests. So both pods are ready,
and the Service selects the pod by the leader's label. Outside a pod there is nothing to label.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError

LOG = logging.getLogger("runai.service")

LEADS = "runai/leads"
LABEL_TIMEOUT_S = 4.0
"""Less than a Lease has left when its leader gives up."""
_ALIVE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class LeaderLabel:
    """The pod that this process runs in; no pod if `name` is ""."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        """Leave the label unchanged until `update` is called."""
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods/{name}" if name else ""

    async def update(self, *, leads: bool) -> None:
        """Set or remove the leader label, by which the Service routes requests here.

        Raises:
            ApiError: the label could not be set, so clients would not find the leader. A failed
                removal is only logged.
            TimeoutError: the same.
        """
        if not self._path:
            return
        label = {LEADS: "true" if leads else None}
        try:
            async with asyncio.timeout(LABEL_TIMEOUT_S):
                await self._api.patch(self._path, {"metadata": {"labels": label}})
        except (ApiError, TimeoutError) as error:
            if leads:
                raise
            # The next leader gets the label too, and this process refuses connections.
            LOG.warning("the leader label could not be removed from the pod: %s", error)


@contextlib.asynccontextmanager
async def serve_liveness_probe(host: str, port: int) -> AsyncGenerator[None]:
    """Answer every probe with 200 while this process's event loop runs; port 0 disables it."""
    if not port:
        yield
        return
    async with await asyncio.start_server(_answer, host, port) as server:
        del server
        yield


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one probe with 200; close the connection."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_ALIVE)
        await writer.drain()
    writer.close()
