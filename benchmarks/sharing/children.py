"""Processes of an experiment: start them together, read their events, kill them at the end."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

WORK = Path(__file__).with_name("work.py")
STARTS_WITHIN_S = 120.0
"""Timeout for importing PyTorch and opening a device, on a busy machine."""
_TAIL = 400


class ChildFailed(Exception):
    """A process ended, or sent no event in time; the message is the end of its output."""


class Child:
    """One process of `work`, killed at the end of its `with` block."""

    def __init__(
        self, name: str, env: Mapping[str, str], prefix: Sequence[str] = (), **options: object
    ) -> None:
        """Start the process; most functions of `work` send the event "ready" first."""
        words = [f"{key}={value}" for key, value in options.items()]
        self._process = subprocess.Popen(
            [*prefix, sys.executable, str(WORK), name, *words],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def __enter__(self) -> Self:
        """Return the child."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Return the PID."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Return True while the process runs."""
        return self._process.poll() is None

    def receive(self, event: str, within_s: float = STARTS_WITHIN_S) -> dict[str, Any]:
        """Wait for an event and return its data.

        Raises:
            ChildFailed: the process ended first, or the time is over.
        """
        while True:
            try:
                message = self._events.get(timeout=within_s)
            except queue.Empty:
                raise ChildFailed(f"no {event} within {within_s:.0f} s") from None
            if message is None:
                tail = "".join(self._errors).strip()[-_TAIL:]
                status = self._process.wait()
                raise ChildFailed(f"ended with status {status} before {event}: {tail}")
            if message["event"] == event:
                return message

    def resume(self) -> None:
        """Send the process a line, which continues it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `receive` reports why the process has ended
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def wait(self, within_s: float) -> int | None:
        """Return the exit status, None where it is still there after so long."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(json.JSONDecodeError):
                self._events.put(json.loads(line))
        self._events.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors += self._process.stderr


@contextmanager
def all_ready(children: Sequence[Child]) -> Iterator[Sequence[Child]]:
    """Wait until each is ready; end them all afterwards."""
    with ExitStack() as stack:
        for child in children:
            stack.enter_context(child)
        for child in children:
            child.receive("ready")
        yield children


def together(children: Sequence[Child], seconds: float) -> list[dict[str, Any]]:
    """Begin at once and return what each found."""
    with all_ready(children) as ready:
        for child in ready:
            child.resume()
        return [child.receive("result", seconds + STARTS_WITHIN_S) for child in ready]
