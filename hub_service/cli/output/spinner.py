"""Show on a terminal that a command is at work, once that takes longer than a second.

On standard error and only while it lasts, so that it is in no pipe, no file and no answer. Used by
the commands that copy, examine, replay or ask something slow; `--wait` and `top` show themselves.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

Tell = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much."""

AFTER_S: Final = 1.0


@contextmanager
def at_work(what: str) -> Iterator[Tell]:
    """Show `what` and a bar while the body runs; what it tells fills the bar.

    Until it tells something the bar only moves. Nothing may be printed meanwhile.
    """
    if not sys.stderr.isatty():
        yield _unseen
        return
    from rich.console import Console  # noqa: PLC0415 - only where somebody watches
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

    def tell(part: str, done: int, of: int) -> None:
        words = f"{what}: {part}" if part else what
        bar.update(task, description=words, completed=done, total=of)

    soon = threading.Timer(AFTER_S, bar.start)
    soon.daemon = True
    soon.start()
    try:
        yield tell
    finally:
        soon.cancel()
        soon.join()  # it may be beginning just now
        if bar.live.is_started:
            bar.stop()


def _unseen(_part: str, _done: int, _of: int) -> None:
    """Tell nobody."""
