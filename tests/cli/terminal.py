"""A pseudo-terminal, and a program that runs on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Terminal:
    """A pseudo-terminal and the output written to it."""

    def __init__(self) -> None:
        self.master_fd, self.slave_fd = os.openpty()
        self.screen = b""

    def read(self) -> bool:
        """Read the next output; return False once no process has the other end open."""
        try:
            chunk = os.read(self.master_fd, 1 << 16)
        except OSError:
            return False
        self.screen += chunk
        return bool(chunk)

    def read_until(self, text: bytes) -> None:
        while text not in self.screen:
            assert self.read(), f"it ended without {text!r}: {self.screen!r}"

    def type(self, text: str) -> None:
        os.write(self.master_fd, text.encode())

    def read_to_end(self) -> bytes:
        while self.read():
            pass
        return self.screen


@contextmanager
def on_terminal(
    program: list[str],
    environment: Mapping[str, str],
    *,
    stdout: int | None = None,
    with_input: bool = False,
) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    """Run a program on a terminal; `stdout` may go elsewhere, its input is optional."""
    terminal = Terminal()
    # Not the settings of the shell that runs the tests: NO_COLOR, a narrow window.
    process_env = {
        "TERM": "xterm-256color",
        "COLUMNS": "120",
        "PATH": os.environ["PATH"],
        **environment,
    }
    process = subprocess.Popen(
        program,
        stdin=terminal.slave_fd if with_input else subprocess.PIPE,
        stdout=terminal.slave_fd if stdout is None else stdout,
        stderr=terminal.slave_fd,
        env=process_env,
        start_new_session=True,
    )
    os.close(terminal.slave_fd)
    try:
        yield terminal, process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.kill()
        process.wait()
        os.close(terminal.master_fd)
