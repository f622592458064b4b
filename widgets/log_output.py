"""Log lines as a notebook keeps them: bounded in lines and size, with a note on the rest.

A notebook saves its output, and Jupyter drops output beyond a megabyte a second without a trace.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import copy_context
from threading import RLock, Timer

from IPython.display import DisplayHandle

from runai.hub_service.client.log_lines import OpenLines, last_state
from runai.hub_service.wire.program_schemas import LogLine

LINES = 2000
SIZE = 200_000
"""Characters of all shown lines together."""
LONGEST = 4000
"""Characters of one line."""
LAST = 20
"""Last lines of a followed log that are shown after its bounds were reached."""

REDRAW_S = 0.25
"""Minimum time between two states of unfinished lines."""


class NotebookLog:
    """A followed log in a notebook's output: whole lines, and the state of unfinished ones."""

    def __init__(self, lines: Iterable[LogLine], *, several: bool) -> None:
        """Store the stream; with `several` workers each line begins with the worker's number."""
        self._stream, self._several = lines, several
        self._open = OpenLines()
        self._handle: DisplayHandle | None = None
        """Output with the states; None: none is shown."""
        self._rendered_at = 0.0
        self._timer: Timer | None = None
        self._lock = RLock()
        """Held while the output or the lines change: a timer draws in a thread of its own."""

    def show(self) -> None:
        """Print the lines as they are written, within a notebook's bounds."""
        try:
            for line in bounded(self._whole_lines(), follow=True):
                self._print(line)
        finally:
            with self._lock:
                self._draw_states()

    def _whole_lines(self) -> Iterator[str]:
        for line in self._stream:
            with self._lock:
                ended = self._open.add(line)
                if not ended:
                    self._draw_soon()
            yield from map(self._displayed_text, ended)

    def _displayed_text(self, line: LogLine) -> str:
        state = _last_state(line.text)
        return f"[{line.worker}] {state}" if self._several else state

    def _print(self, line: str) -> None:
        """Print a whole line; a single state that ends becomes it."""
        with self._lock:
            if self._handle is not None and not self._open:
                # The last state becomes the line, where it stands.
                self._draw_states(line)
                self._handle = None
            else:
                print(line, flush=True)  # noqa: T201 - the purpose of this class

    def _draw_soon(self) -> None:
        """Draw now, or as soon as the last state was shown long enough."""
        wait_s = self._rendered_at + REDRAW_S - time.monotonic()
        if wait_s <= 0:
            self._draw_states()
        elif self._timer is None:
            self._timer = Timer(wait_s, copy_context().run, [self._draw_states])
            self._timer.daemon = True
            self._timer.start()

    def _draw_states(self, text: str | None = None) -> None:
        """Show the unfinished lines' states, or `text` in their place."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if text is None:
                text = "\n".join(map(self._displayed_text, self._open))
            if self._handle is None:
                if not text:
                    return
                self._handle = DisplayHandle()
                self._handle.display({"text/plain": text}, raw=True)
            else:
                time.sleep(max(0.0, self._rendered_at + REDRAW_S - time.monotonic()))
                self._handle.update({"text/plain": text}, raw=True)
            self._rendered_at = time.monotonic()


def bounded(lines: Iterable[str], *, follow: bool = False) -> Iterator[str]:
    r"""Yield the last lines within the bounds; of a followed log the first ones and a few last.

    >>> [*bounded(["1 %\r2 %\r3 %\n", "done"])]
    ['3 %', 'done']
    """
    states = map(_last_state, lines)
    yield from _first_within_bounds(states) if follow else _last_within_bounds(states)


def _last_within_bounds(lines: Iterable[str]) -> Iterator[str]:
    """Yield the last lines that fit, after a note on those left out."""
    tail: deque[str] = deque()
    size = left_out = 0
    for line in lines:
        tail.append(line)
        size += len(line)
        while len(tail) > LINES or size > SIZE:
            size -= len(tail.popleft())
            left_out += 1
    if left_out:
        yield _note(left_out, "earlier")
    yield from tail


def _first_within_bounds(lines: Iterable[str]) -> Iterator[str]:
    """Yield the first lines that fit, a note, and a few last lines."""
    count = size = left_out = 0
    last: deque[str] = deque(maxlen=LAST)
    for line in lines:
        if count < LINES and size + len(line) <= SIZE:
            count, size = count + 1, size + len(line)
            yield line
            continue
        if not left_out:
            yield "… more is written than a notebook should keep; the last lines follow at the end."
        left_out += 1
        last.append(line)
    if left_out > len(last):
        yield _note(left_out - len(last), "further")
    yield from last


def _note(count: int, which: str) -> str:
    plural = "line is" if count == 1 else "lines are"
    return f"… {count:,} {which} {plural} not shown: `runai logs` in a terminal prints all."


def _last_state(line: str) -> str:
    r"""Return a line as a terminal leaves it: `\r` goes back to its beginning."""
    text = last_state(line)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]} … {len(text) - LONGEST:,} more characters"
