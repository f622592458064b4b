"""Printed text of a cell, as a terminal shows it and within bounds."""

import re
from collections.abc import Iterator
from typing import Any, Final

from runai.hub_service.client.log_lines import last_state

MAX_TEXT_BYTES: Final = 200_000
"""Printed text of a cell that the copy keeps: the newest, since the log has all."""
CUT_TEXT_BYTES: Final = 150_000  # less, so that not every further line cuts again
_BACKSPACED: Final = re.compile(r"[^\x08\r]\x08")


def overwritten(before: str, new: str) -> str:
    r"""Return text with more printed to it, as a terminal shows it: `\r` and `\b` applied.

    >>> overwritten("loss\n10 %\r", "20 %\nen"), overwritten("en", "\bnd\n")
    ('loss\n20 %\nen', 'end\n')
    """
    *lines, last = (before[before.rfind("\n") + 1 :] + new).split("\n")
    is_open = last.endswith("\r")  # the next text begins the line anew
    states = [*map(_state, lines), _state(last) + "\r" * is_open]
    return before[: before.rfind("\n") + 1] + "\n".join(states)


def _state(line: str) -> str:
    line = last_state(line)
    while "\b" in line:
        shorter = _BACKSPACED.sub("", line)
        line = shorter if shorter != line else line.replace("\b", "")
    return line


def cut_text(outputs: list[Any], note: str, *, in_place: bool) -> int:
    """Drop a cell's oldest printed text beyond the bound, with a note; return the bytes left.

    `in_place`: no output changes its place, since the kernel may update some by their numbers.
    """
    texts = [each for each in outputs if each["output_type"] == "stream"]
    size = sum(len(each["text"].encode(errors="replace")) for each in texts)
    if size <= MAX_TEXT_BYTES:
        return size
    room = CUT_TEXT_BYTES
    for each, text in _newest_first(texts):
        each["text"] = text[-room:].decode(errors="ignore") if room else ""
        if room < len(text):  # from the next whole line on
            each["text"] = each["text"].partition("\n")[2] or each["text"]
        room -= min(room, len(text))
    if not in_place:
        outputs[:] = [each for each in outputs if each.get("text") != ""]
    first = next(each for each in outputs if each["output_type"] == "stream" and each["text"])
    first["text"] = f"{note}\n{first['text']}"
    return CUT_TEXT_BYTES


def _newest_first(texts: list[Any]) -> Iterator[tuple[Any, bytes]]:
    for each in reversed(texts):
        yield each, each["text"].encode(errors="replace")
