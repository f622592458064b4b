"""Processes that still work when a worker's program has ended. Standard library only."""

import collections
import contextlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from runai.hub_service.clusters.local.supervisor import stop_order
else:
    import stop_order  # in the subreaper's program, which extends sys.path

MAX_NAMES = 5
MAX_CHARACTERS = 32
_HELPER = re.compile(rb"\0-c\0from [\w.]+\.(resource_tracker|forkserver) import main")
"""Python's helpers, also joblib's, which end after the processes that they serve."""


def names_of_working(root: int, spared: int) -> list[str]:
    """Return the names of all processes below `root` but Python's helpers and `spared`."""
    live = stop_order.processes_below(root)
    command_lines = {pid: _read(f"/proc/{pid}/cmdline") for pid in live if pid != spared}
    helpers = {pid for pid, line in command_lines.items() if _HELPER.search(line)}
    # Processes of a fork server have its command line.
    helpers = {pid for pid in helpers if live[pid].parent not in helpers}
    return [_display_name(pid, line) for pid, line in command_lines.items() if pid not in helpers]


def sentence(names: list[str]) -> str:
    """Return which processes were ended, for log and history."""
    counts = sorted(collections.Counter(names).items(), key=lambda item: (-item[1], item[0]))
    parts = [name if count == 1 else f"{name} ({count})" for name, count in counts[:MAX_NAMES]]
    if more := sum(count for _, count in counts[MAX_NAMES:]):
        parts.append(f"and {more} more")
    noun, verb = ("process", "was") if len(names) == 1 else ("processes", "were")
    return (
        f"{len(names)} {noun} {verb} still working when the program ended, "
        f"and {verb} ended: {', '.join(parts)}"
    )


def _display_name(pid: int, line: bytes) -> str:
    """Return a process's name, which it may have chosen itself."""
    word = (line.partition(b"\0")[0].split() or [b""])[0].rpartition(b"/")[2]
    text = (word or _read(f"/proc/{pid}/comm").strip()).decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_CHARACTERS])


def _read(path: str) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
        return file.read(4096)
    return b""  # it has ended
