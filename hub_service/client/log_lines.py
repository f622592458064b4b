"""Joining of log lines that come in parts, and printing while they are written."""

import re
from collections.abc import Callable, Iterator

from runai.hub_service.wire.printable import for_terminal
from runai.hub_service.wire.program_schemas import LogLine

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_HALF_SEQUENCE = re.compile(r"\x1b(\[[0-9;:]{0,40})?\Z")


def last_state(line: str) -> str:
    r"""Return a line as a terminal leaves it: `\r` goes back to its beginning.

    >>> last_state("1 %\r2 %\r")
    '2 %'
    """
    return line.rstrip("\r\n").rpartition("\r")[2]


class OpenLines:
    """Unfinished lines of a stream, by worker and attempt, joined of their parts."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: dict[tuple[int, int], LogLine] = {}

    def __len__(self) -> int:
        """Return how many lines are unfinished."""
        return len(self._open)

    def __iter__(self) -> Iterator[LogLine]:
        """Yield the lines so far."""
        return iter(self._open.values())

    def add(self, line: LogLine) -> list[LogLine]:
        """Return the whole lines that this one is or ends."""
        key = line.worker, line.attempt
        before = self._open.pop(key, None)
        if line.missing is not None:  # the end of the line before is missing too
            return [line] if before is None else [_ended(before), line]
        if before is not None:
            line = line.model_copy(update={"text": before.text + line.text})
        if not line.part:
            return [line]
        self._open[key] = line
        return []

    def end_all(self) -> list[LogLine]:
        """End and return the unfinished lines, once the stream has ended."""
        lines = [_ended(line) for line in self._open.values()]
        self._open.clear()
        return lines


def _ended(line: LogLine) -> LogLine:
    return line.model_copy(update={"part": False})


class LogPrinter:
    """Printer of log lines to a terminal, which shows unfinished ones too, a pipe or a file."""

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        several: bool,
        terminal: Callable[[], tuple[int, int]] | None,
    ) -> None:
        """Begin with no line; `terminal` returns columns and rows, None: it is none.

        A terminal gets no control sequences of the program; a pipe gets every letter.
        """
        self._write = write
        self._several = several
        self._terminal = terminal
        self._lines = OpenLines()
        self._half_sequence = ""
        """Beginning of an escape sequence."""
        self._is_within_line = False
        self._rows = 0
        """Unfinished lines that the terminal shows."""
        self.parts = terminal is not None or not several
        """True if it prints unfinished lines: in a pipe they would mix with further workers'."""

    def print(self, line: LogLine) -> None:
        """Print a line or a part of one."""
        if not self._several:
            self._print_one(line)
        elif self._terminal is None:
            self._write(f"[{line.worker}] {line.text}\n")
        else:
            self._print_several(self._lines.add(line), *self._terminal())

    def close(self) -> None:
        """End unfinished lines."""
        if self._is_within_line:
            self._write("\n")
        self._is_within_line, self._half_sequence = False, ""
        if self._rows and self._terminal is not None:
            self._print_several(self._lines.end_all(), *self._terminal())

    def _print_one(self, line: LogLine) -> None:
        """Print a line of the only worker at once, or a part of one."""
        if line.missing is not None:
            self.close()
        text, self._half_sequence = self._half_sequence + line.text, ""
        if self._terminal is not None:
            if line.part and (half := _HALF_SEQUENCE.search(text)):
                text, self._half_sequence = text[: half.start()], half[0]
            text = for_terminal(text)
        self._write(text if line.part else f"{text}\n")
        self._is_within_line = line.part

    def _print_several(self, ended: list[LogLine], columns: int, rows: int) -> None:
        """Print whole lines above the unfinished ones, each of which has a row."""
        ended_rows = [f"[{line.worker}] {for_terminal(last_state(line.text))}" for line in ended]
        open_rows = [_row(line, columns) for line in self._lines][1 - rows :]
        erase = f"\x1b[{self._rows}F\x1b[J" if self._rows else ""
        self._write(erase + "".join(f"{row}\n" for row in ended_rows + open_rows))
        self._rows = len(open_rows)


def _row(line: LogLine, columns: int) -> str:
    """Return an unfinished line without its colours, cut to one row."""
    text = _COLOUR.sub("", last_state(line.text)).replace("\t", " ")
    max_letters = columns if text.isascii() else columns // 2  # a letter may have two columns
    return f"[{line.worker}] {for_terminal(text)}"[: max_letters - 1]
