"""A start or a wait for an answer ends with its server, by whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import pytest

from runai.spawner.first_answer import end_wait_with_server, unless_ended


class Ended(Exception):
    """The server's end."""


async def never() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def at_once() -> NoReturn:
    raise Ended


class Server:
    """A server as JupyterHub knows it, which answers by `work`."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._work = work
        self.asked: dict[str, Any] = {}

    async def wait_up(self, **how: Any) -> Any:
        self.asked = how
        return await self._work()


async def answer() -> str:
    return "answer"


async def timeout() -> str:
    raise TimeoutError


async def test_answer_of_a_server_is_returned():
    server = Server(answer)
    end_wait_with_server(server, never)

    assert await server.wait_up(http=True, timeout=3) == "answer"
    assert server.asked == {"http": True, "timeout": 3}


@pytest.mark.parametrize(
    ("work", "end", "raised"),
    [
        pytest.param(never, at_once, Ended, id="the server's end"),
        pytest.param(timeout, never, TimeoutError, id="a timeout"),
        pytest.param(timeout, at_once, TimeoutError, id="a timeout with the end"),
    ],
)
async def test_wait_for_an_answer_ends_with(work, end, raised: type[Exception]):
    server = Server(work)
    end_wait_with_server(server, end)

    with pytest.raises(raised):
        await server.wait_up()


async def test_cancelled_start_cancels_its_parts():
    cancelled = []

    async def part() -> NoReturn:
        try:
            await never()
        finally:
            cancelled.append(1)

    start = asyncio.ensure_future(unless_ended(part(), part()))
    await asyncio.wait({start}, timeout=0)
    await asyncio.wait({start}, timeout=0)
    start.cancel()

    with pytest.raises(asyncio.CancelledError):
        await start
    assert cancelled == [1, 1]
