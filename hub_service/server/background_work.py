"""What running the service takes on every cluster: signals, listening, the work in the background.

Used by the composition roots, `__main__` (this machine) and `kubernetes_service`.
"""

import asyncio
import faulthandler
import signal
import socket
import sys
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
"""Long enough for streams to end and the ledger to be written; the next start waits for us."""

SWITCH_S = 0.0005
"""How long a thread that computes keeps the interpreter from another that has something to do."""

Work = Coroutine[Any, Any, object]


def share_the_interpreter() -> None:
    """Let requests be answered while a thread decides about tens of thousands of workloads.

    Whoever sends or receives lets go of the interpreter and waits for it again: with Python's own
    5 ms each message would cost that while a decision is made.
    """
    sys.setswitchinterval(SWITCH_S)


@asynccontextmanager
async def hub_users(config: Config) -> AsyncGenerator[HubAuthenticator | None]:
    """Open the connection to JupyterHub, where there is one."""
    if config.hub is None:
        yield None
        return
    users = HubAuthenticator(config.hub, prefix=config.prefix, secret=config.hub_token)
    try:
        yield users
    finally:
        await users.close()


def on_signal(act: Callable[[], object]) -> None:
    """Do this, and nothing else, when somebody wants the service to end.

    A service that cannot end in good order ends without: the next one waits for its lock, and
    nothing is lost by a crash. It says where it hung. Who asks once more finds nobody: a loop that
    closes would hear of it by a descriptor that is closed, or is another file by then.
    """

    def leave() -> None:
        signal.set_wakeup_fd(-1)
        faulthandler.dump_traceback_later(LEAVE_WITHIN_S, exit=True)
        act()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, leave)


async def run_until(
    stopped: asyncio.Event,
    platform: Platform,
    server: Server,
    listening: socket.socket,
    work: Sequence[Work],
    *,
    first: Work | None = None,
) -> None:
    """Own all background work; whatever fails ends everything, and JupyterHub starts us anew.

    Requests are answered when `first`, for which the work goes on already, is done; until then
    they wait.
    """

    async def serve() -> None:
        if first is not None:
            await first
        await server.serve(sockets=[listening])

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(coroutine) for coroutine in work]
        serving = tasks.create_task(serve())
        await stopped.wait()
        platform.leaving.set()
        if server.started:
            server.stop()
            await serving
        for task in (serving, *running):
            task.cancel()


def url_of(config: Config, listening: socket.socket | None) -> str:
    """Return the service's root as processes of this machine reach it; "" before it listens."""
    if listening is None:
        return ""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  compared, not bound
    return (
        f"http://[{host}]:{port}{config.prefix}"
        if ":" in host
        else f"http://{host}:{port}{config.prefix}"
    )


def notifier(config: Config, platform: Platform) -> Notifier:
    """Return what tells people of their workloads, by the ways that are set."""
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


def no_opinion(_path: str) -> bool:
    """Leave it to the start of the job: only its own account can tell what it may read."""
    return True
