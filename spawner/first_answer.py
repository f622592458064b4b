"""A server's start and the wait for its first answer, which both end with the server."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

T = TypeVar("T")

CANCEL_EVERY_S: Final = 0.5


async def unless_ended(work: Awaitable[T], end: Coroutine[Any, Any, NoReturn]) -> T:
    """Return the result of `work`; raise the exception of `end` if that comes first."""
    tasks = working, ending = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            ending.result()
        return await working
    finally:
        await _cancel_all(*tasks)


def end_wait_with_server(server: Any, end: Callable[[], Coroutine[Any, Any, NoReturn]]) -> None:  # noqa: ANN401 - JupyterHub's, untyped
    """Let JupyterHub's wait for the server's first answer end when `end` raises.

    By itself JupyterHub waits for the whole `http_timeout`, even if the server has ended.
    """
    wait_up = server.wait_up

    async def wait_up_unless_ended(**arguments: Any) -> Any:  # noqa: ANN401 - JupyterHub's
        return await unless_ended(wait_up(**arguments), end())

    server.wait_up = wait_up_unless_ended


async def _cancel_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until they end: JupyterHub gives an interrupted start one second.

    Repeated, since `wait_for` before Python 3.12 loses a cancel that races with its result.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_EVERY_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # retrieve their exceptions
