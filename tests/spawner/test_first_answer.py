"""A start or a wait for an answer ends with its server, by whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import pytest

from runai.spawner.first_answer import end_wait_with_server, unless_ended


class ServerEnded(Exception):
    """The server's end."""


async def wait_forever() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def raise_ended() -> NoReturn:
    raise ServerEnded


class StubServer:
    """A server as JupyterHub knows it, which answers by `work`."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._work = work
        self.wait_options: dict[str, Any] = {}

    async def wait_up(self, **options: Any) -> Any:
        self.wait_options = options
        return await self._work()


async def answer() -> str:
    return "answer"


async def timeout() -> str:
    raise TimeoutError


async def test_wait_up_returns_the_answer_of_the_server():
    server = StubServer(answer)
    end_wait_with_server(server, wait_forever)

    assert await server.wait_up(http=True, timeout=3) == "answer"
    assert server.wait_options == {"http": True, "timeout": 3}


@pytest.mark.parametrize(
    ("wait_for_answer", "wait_for_end", "error"),
    [
        pytest.param(wait_forever, raise_ended, ServerEnded, id="end of the server"),
        pytest.param(timeout, wait_forever, TimeoutError, id="timeout"),
        pytest.param(timeout, raise_ended, TimeoutError, id="timeout and end at once"),
    ],
)
async def test_wait_up_raises_the_exit_of_the_notebook_server_or_the_timeout(
    wait_for_answer, wait_for_end, error: type[Exception]
):
    server = StubServer(wait_for_answer)
    end_wait_with_server(server, wait_for_end)

    with pytest.raises(error):
        await server.wait_up()


async def test_cancelled_server_start_cancels_its_tasks():
    cancelled_parts = []

    async def wait_until_cancelled() -> NoReturn:
        try:
            await wait_forever()
        finally:
            cancelled_parts.append("part")

    start = asyncio.ensure_future(unless_ended(wait_until_cancelled(), wait_until_cancelled()))
    for _ in range(2):  # turns of the loop, in which the parts begin
        await asyncio.wait({start}, timeout=0)
    start.cancel()

    with pytest.raises(asyncio.CancelledError):
        await start
    assert cancelled_parts == ["part", "part"]
