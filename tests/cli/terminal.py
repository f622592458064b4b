"""A pseudo-terminal, and a program that runs on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Terminal:
    """A pseudo-terminal and the output written to it."""

    def __init__(self) -> None:
        self.ours, self.theirs = os.openpty()
        self.screen = b""

    def read(self) -> bool:
        """Read the next output; return False once no process has the other end open."""
        try:
            read = os.read(self.ours, 1 << 16)
        except OSError:
            return False
        self.screen += read
        return bool(read)

    def until(self, text: bytes) -> None:
        while text not in self.screen:
            assert self.read(), f"it ended without {text!r}: {self.screen!r}"

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def rest(self) -> bytes:
        while self.read():
            pass
        return self.screen


@contextmanager
def on_terminal(
    program: list[str],
    environment: Mapping[str, str],
    *,
    stdout: int | None = None,
    typed: bool = False,
) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    """Run a program on a terminal; `stdout` may go elsewhere, typed input is optional."""
    terminal = Terminal()
    # Not the settings of the shell that runs the tests: NO_COLOR, a narrow window.
    told = {"TERM": "xterm-256color", "COLUMNS": "120", "PATH": os.environ["PATH"], **environment}
    running = subprocess.Popen(
        program,
        stdin=terminal.theirs if typed else subprocess.PIPE,
        stdout=terminal.theirs if stdout is None else stdout,
        stderr=terminal.theirs,
        env=told,
        start_new_session=True,
    )
    os.close(terminal.theirs)
    try:
        yield terminal, running
    finally:
        if running.stdin is not None:
            running.stdin.close()
        running.kill()
        running.wait()
        os.close(terminal.ours)
