"""An event loop in virtual time that can be abandoned at any step, like a killed process.

The loop never waits: when no callback is ready, the time moves to the next timer. Work for threads
runs at once in the loop, so that a seed replays identically. `crash_after` stops between any two
steps: no `finally` is run, no task is cancelled.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

EPOCH = 1_700_000_000.0


class Crash(KeyboardInterrupt):
    """End of the simulated process; a KeyboardInterrupt, so that no `except Exception` stops it."""


class Stuck(AssertionError):
    """Deadlock: no task is ready and no timer is set."""


class WallClock:
    """Replacement for `time.time`: the loop's time plus an error of `off_s` seconds."""

    def __init__(self) -> None:
        self.true = 0.0
        self.off_s = 0.0

    def __call__(self) -> float:
        return EPOCH + self.true + self.off_s


class _SkippingSelector(selectors.DefaultSelector):
    """Selector that advances the virtual time instead of waiting."""

    def __init__(self, clock: WallClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            if asyncio.get_event_loop_policy().get_event_loop().dead:  # type: ignore[attr-defined]
                raise Crash
            raise Stuck("no task has anything to wait for")
        self._clock.true += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop that takes its time from a WallClock, and continues from there."""

    def __init__(self, clock: WallClock) -> None:
        self._wall = clock
        self._steps_left: int | None = None
        self.dead = False
        super().__init__(_SkippingSelector(clock))

    def time(self) -> float:
        return self._wall.true

    def crash_after(self, steps: int) -> None:
        """Crash after `steps` more steps of tasks and callbacks."""
        self._steps_left = steps

    def crash(self) -> None:
        """Crash now."""
        self.dead = True
        self.set_exception_handler(lambda *_: None)  # a dead process logs nothing
        raise Crash

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return super().call_soon(self._run_step, callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, work: Callable[..., Any], *args: Any
    ) -> Any:
        done = self.create_future()

        def do() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(work(*args))
            except Exception as failed:  # noqa: BLE001  raised where the future is awaited
                done.set_exception(failed)

        self.call_soon(do)
        return done

    def _run_step(self, callback: Callable[..., object], *args: object) -> None:
        if self.dead:  # a task group delayed the crash to let its tasks end
            raise Crash
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left < 0:
                self.crash()
        callback(*args)


def in_virtual_time(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make an async test run in virtual time: a deadline passes when nothing else can happen."""

    @functools.wraps(story)
    def run(*fixtures: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(WallClock())) as runner:
            runner.run(story(*fixtures, **named))

    return run


def abandon(loop: VirtualLoop) -> None:
    """Discard the loop of a crashed process, without running or logging anything of its tasks."""
    loop.dead = True
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        _close(task)
    loop._ready.clear()  # type: ignore[attr-defined]
    loop._scheduled.clear()  # type: ignore[attr-defined]
    loop.close()


def _close(task: asyncio.Task[Any]) -> None:
    # A killed process would not run the code that closing a coroutine runs; all that such code
    # could reach is dead by now and raises.
    for _ in range(100):
        try:
            task.get_coro().close()  # type: ignore[union-attr]
        except BaseException:  # noqa: BLE001  a killed process would not have run this
            continue
        return
