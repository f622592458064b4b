"""Progress bar for commands that take longer than a second.

It appears on standard error, only on a terminal, and disappears at the end, so that no pipe, file
or reply contains it. `--wait` and `top` have their own displays.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

ReportProgress = Callable[[str, int, int], None]
"""Callback of a running command: description, completed amount, total amount."""

AFTER_S: Final = 1.0


@contextmanager
def show_progress(what: str) -> Iterator[ReportProgress]:
    """Show `what` and a bar while the body runs; the yielded callback fills the bar.

    Before its first call the bar only moves. The body must not print.
    """
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console  # noqa: PLC0415 - only on terminals
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = bar.add_task(what, total=None)

    def update(part: str, done: int, of: int) -> None:
        words = f"{what}: {part}" if part else what
        bar.update(task, description=words, completed=done, total=of)

    soon = threading.Timer(AFTER_S, bar.start)
    soon.daemon = True
    soon.start()
    try:
        yield update
    finally:
        soon.cancel()
        soon.join()  # the timer may be starting the bar right now
        if bar.live.is_started:
            bar.stop()


def _ignore(_part: str, _done: int, _of: int) -> None:
    """Ignore progress if there is no terminal."""
