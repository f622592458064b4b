"""Log lines as a notebook keeps them: bounded in lines and size, with a note on the rest.

A notebook saves its output, and Jupyter drops output beyond a megabyte a second without a trace.
"""

from collections import deque
from collections.abc import Iterable, Iterator

LINES = 2000
SIZE = 200_000
"""Characters of all shown lines together."""
LONGEST = 4000
"""Characters of one line."""
LAST = 20
"""Last lines of a followed log that are shown after its bounds were reached."""


def bounded(lines: Iterable[str], *, follow: bool = False) -> Iterator[str]:
    r"""Yield the last lines within the bounds; of a followed log the first ones and a few last.

    >>> [*bounded(["1 %\r2 %\r3 %\n", "done"])]
    ['3 %', 'done']
    """
    shown = map(_last_state, lines)
    yield from _first(shown) if follow else _newest(shown)


def _newest(lines: Iterable[str]) -> Iterator[str]:
    kept: deque[str] = deque()
    size = left_out = 0
    for line in lines:
        kept.append(line)
        size += len(line)
        while len(kept) > LINES or size > SIZE:
            size -= len(kept.popleft())
            left_out += 1
    if left_out:
        yield _note(left_out, "earlier")
    yield from kept


def _first(lines: Iterable[str]) -> Iterator[str]:
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
    text = line.rstrip("\r\n").rpartition("\r")[2]
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]} … {len(text) - LONGEST:,} more characters"
