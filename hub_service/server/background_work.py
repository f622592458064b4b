"""Common parts of the composition roots: signals, serving, background tasks, notifications."""

import asyncio
import faulthandler
import gc
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from runai.hub_service.api.auth.hub_auth import HubAuthenticator
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.controller.notifications import Notifier
from runai.hub_service.controller.notifications.channels import Channel, Mail, Webhook
from runai.hub_service.server.listener import Server
from runai.hub_service.server.settings import Config

LEAVE_WITHIN_S = 10.0
"""Time-out of a shutdown: enough to end streams and write the ledger. The next start waits."""

GC_EVERY, FULL_GC_EVERY = 10_000, 1_000
"""New objects from one young collection to the next, and second ones from a full to the next."""

Work = Coroutine[Any, Any, object]


@asynccontextmanager
async def hub_users(config: Config) -> AsyncGenerator[HubAuthenticator | None]:
    """Open the connection to JupyterHub, if configured; else yield None."""
    if config.hub is None:
        yield None
        return
    users = HubAuthenticator(config.hub, prefix=config.prefix, secret=config.hub_token)
    try:
        yield users
    finally:
        await users.close()


def on_signal(act: Callable[[], object]) -> None:
    """Call `act` on SIGTERM and SIGINT, once.

    If the shutdown takes longer than LEAVE_WITHIN_S, the process prints its stacks and exits: the
    next service waits for its lock, and a crash loses nothing. Later signals are ignored: a
    closing event loop would get them by a descriptor that is closed or already another file.
    """

    def begin_shutdown() -> None:
        signal.set_wakeup_fd(-1)
        faulthandler.dump_traceback_later(LEAVE_WITHIN_S, exit=True)
        act()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, begin_shutdown)


async def run_until(
    stopped: asyncio.Event,
    platform: Platform,
    server: Server,
    listening: socket.socket,
    work: Sequence[Work],
    *,
    first: Work | None = None,
) -> None:
    """Run all background tasks and the server; a failure ends all, and JupyterHub restarts it.

    The tasks start at once. The server accepts requests once `first` is done; until then they wait.
    """

    async def serve() -> None:
        if first is not None:
            await first
        await server.serve(sockets=[listening])

    # What is loaded by now lives until exit: Python's collector need not look at it again.
    gc.collect()
    gc.freeze()
    # With 20,000 queued jobs a full collection stops the event loop for 0.3 s and frees some
    # hundred objects; at Python's default there is one in a few hundred submissions.
    gc.set_threshold(GC_EVERY, 10, FULL_GC_EVERY)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(coroutine) for coroutine in work]
        serving = tasks.create_task(serve())
        await stopped.wait()
        platform.shutdown.set()
        if server.started:
            server.stop()
            await serving
        for task in (serving, *running):
            task.cancel()


def url_of(config: Config, listening: socket.socket | None) -> str:
    """Return the service's root address on this machine; "" before it listens."""
    if listening is None:
        return ""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  compared, not bound
    return (
        f"http://[{host}]:{port}{config.prefix}"
        if ":" in host
        else f"http://{host}:{port}{config.prefix}"
    )


def build_notifier(config: Config, platform: Platform) -> Notifier:
    """Return the notifier of users with the configured channels."""
    channels: list[Channel] = []
    if config.notify.webhook is not None:
        channels.append(Webhook(config.notify.webhook))
    if config.notify.mail is not None:
        channels.append(Mail(config.notify.mail))
    return Notifier(
        platform.cluster,
        platform.idle.now,
        platform.recent,
        channels,
        platform.controller.changes,
    )


def accept_any_workdir(_path: str) -> bool:
    """Accept every working directory; only the job's account can check it, at its start."""
    return True
