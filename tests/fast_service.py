"""Shortcuts for services in a test's own process: migrated ledgers, and quick shutdowns.

Hundreds of tests start a service. A migration takes 0.1 s, uvicorn's shutdown 0.2 s, or 1.2 s if a
stream is open.
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from runai.hub_service.ledger import Ledger
from runai.hub_service.ledger.store import LedgerStore
from runai.hub_service.server.listener import Server


def migrated_ledger(file: Path) -> Ledger:
    """Open a ledger; a missing file begins as a copy of a migrated one."""
    if not file.exists():
        file.write_bytes(_empty())
    return Ledger(file)


@cache
def _empty() -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "empty.sqlite"
        LedgerStore(file).close()
        return file.read_bytes()


TURNS_UNTIL_ACCEPTED = 3
"""Turns of the event loop between a client's connection and the server's accepting it."""


async def stop_server(server: Server, answering: asyncio.Task[None]) -> None:
    """Stop a server and cancel its open requests.

    asyncio loses connections that it accepts while the listener closes (github.com/python/cpython,
    issue 109564): the listeners stop accepting first.
    """
    loop = asyncio.get_running_loop()
    for listener in server.servers:
        for listening in listener.sockets:
            loop.remove_reader(listening.fileno())
    for _ in range(TURNS_UNTIL_ACCEPTED):
        await asyncio.sleep(0)
    for listener in server.servers:
        listener.close()
    for connection in [*server.server_state.connections]:
        connection.transport.abort()
    open_requests = [*server.server_state.tasks]
    for task in [answering, *open_requests]:
        task.cancel()
    await asyncio.gather(answering, *open_requests, return_exceptions=True)
