"""Strict parser of job traces: CSV files, plain or gzipped, as rows in order of submission.

Errors name line, column and value.
"""

from __future__ import annotations

import csv
import gzip
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from sys import intern
from typing import IO, Any, Final

from runai.hub_service.scheduler.model.quantity import (
    WHOLE_GPU,
    Mib,
    fraction_of_memory,
    gpu_text,
)
from runai.hub_service.scheduler.model.snapshot import Node, Workload, WorkloadKind
from runai.hub_service.wire.amounts import MOST_WORKERS, gpus
from runai.hub_service.wire.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One job of a trace. GPUs in milli-GPU of all workers together, times in seconds."""

    job: str
    project: str
    submit_s: int
    gpus: int
    duration_s: int
    """Run time with the requested GPUs; the scheduler never sees it."""
    workers: int | None = None
    """None: one worker, or one per whole node if the request exceeds a node."""
    min_workers: int | None = None
    max_workers: int | None = None
    """Set for an elastic job of workers with one GPU each."""
    kind: WorkloadKind = "job"
    priority: int | None = None
    user: str = ""
    gpu_memory_mib: int | None = None
    """GPU memory of each worker, instead of `gpus`."""
    gpu_type: str = ""
    cpu_milli: int = 0
    """CPU of each worker; `memory_mib` is per worker too."""
    memory_mib: int = 0
    checkpoint_cost_s: int | None = None
    """Cost of a pause; None: no checkpoints, so that it restarts from zero."""
    busy_pct: float | None = None
    """Average percentage of the requested GPUs that it keeps busy while it runs; None: unknown."""
    request: Workload | None = None
    """Complete request, if more is known than the columns (`platform_history`)."""

    @property
    def is_elastic(self) -> bool:
        """Whether it may run with fewer or more workers than requested."""
        return self.min_workers is not None or self.max_workers is not None

    def may_fit(self, milli: int) -> bool:
        """Return False if it certainly needs more than this many milli-GPU.

        A check before the division into workers; elastic jobs and full requests always pass.
        """
        return self.request is not None or self.is_elastic or self.gpus <= milli


MOST_DIGITS: Final = 12
"""Maximum number of digits of a number, and of milli-GPU: 1e999999 is a mistake."""


_PERCENTAGE: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        message = "must be a whole number from 0 upwards"
        raise ValueError(message)
    if len(text) > MOST_DIGITS:
        message = f"is too large: use at most {MOST_DIGITS} digits"
        raise ValueError(message)
    return int(text)


def _positive(text: str) -> int:
    value = _whole(text)
    if not value:
        message = "must be at least 1"
        raise ValueError(message)
    return value


def _workers(text: str) -> int:
    value = _positive(text)
    if value > MOST_WORKERS:
        message = f"is too large: a job has at most {MOST_WORKERS}"
        raise ValueError(message)
    return value


def _percentage(text: str) -> float:
    value = float(text) if _PERCENTAGE.fullmatch(text) else -1.0
    if not 0 <= value <= 100:
        message = "must be a percentage, from 0 to 100"
        raise ValueError(message)
    return value


def _gpus(text: str) -> int:
    try:
        milli = int(gpus(text) * 1000)
    except ValueError as wrong:
        message = f"is no number of GPUs: {wrong}"
        raise ValueError(message) from None
    if milli > 1000 and milli % 1000:
        message = "must be whole, or below 1"
        raise ValueError(message)
    return milli


def _name(text: str) -> str:
    if not text:
        message = "must not be empty"
        raise ValueError(message)
    return text


def _kind(text: str) -> str:
    if text not in {"job", "session"}:
        message = "must be job or session"
        raise ValueError(message)
    return text


REQUIRED_COLUMNS: Final[Mapping[str, Callable[[str], Any]]] = {
    "job": _name,
    "project": _name,
    "submit_s": _whole,
    "gpus": _gpus,
    "duration_s": _whole,
}
OPTIONAL_COLUMNS: Final[Mapping[str, Callable[[str], Any]]] = {
    "workers": _workers,
    "min_workers": _workers,
    "max_workers": _workers,
    "kind": _kind,
    "priority": _whole,
    "user": str,
    "gpu_memory_mib": _positive,
    "gpu_type": str,
    "cpu_milli": _whole,
    "memory_mib": _whole,
    "checkpoint_cost_s": _whole,
    "busy_pct": _percentage,
}
_COLUMNS: Final = {**REQUIRED_COLUMNS, **OPTIONAL_COLUMNS}


def read_trace(path: Path) -> list[TraceRow]:
    """Read a trace, `.gz` or plain; return rows ordered by submission, then name.

    Raises:
        InvalidRequest: the file cannot be read, or a line is invalid.
    """
    try:
        with _opened(path) as file:
            rows = list(_rows(path, csv.reader(file, strict=True)))
    except (OSError, EOFError, UnicodeDecodeError) as unreadable:
        why = getattr(unreadable, "strerror", None) or "it is no text, or no gzip file"
        raise InvalidRequest(f"{path} cannot be read: {why}.", hint=_COLUMN_HINT) from unreadable
    rows.sort(key=lambda row: (row.submit_s, row.job))
    return rows


MAX_QUOTED_LENGTH: Final = 60
_COLUMN_HINT: Final = f"A trace has the columns {','.join(REQUIRED_COLUMNS)}."


_ENCODING: Final = "utf-8-sig"
"""UTF-8, with or without the byte order mark of spreadsheets."""


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding=_ENCODING, newline="")
    return path.open(encoding=_ENCODING, newline="")


def _rows(path: Path, lines: Any) -> Iterator[TraceRow]:  # noqa: ANN401  csv's reader type is private
    try:
        header = _header(path, next(lines, []))
        seen: dict[str, int] = {}
        for values in lines:
            if not values:
                continue
            where = f"{path}, line {lines.line_num}"
            if len(values) != len(header):
                count = f"{len(values)} values for {len(header)} columns"
                raise InvalidRequest(f"{where}: there are {count}.", hint=_COLUMN_HINT)
            row = _row(where, header, values)
            if row.job in seen:
                raise InvalidRequest(
                    f"{where}, column job: {_quoted(row.job)} is there twice, first in line"
                    f" {seen[row.job]}.",
                    hint="Give every job a name of its own.",
                )
            seen[row.job] = lines.line_num
            yield row
    except csv.Error as wrong:
        text = f"{path}, line {lines.line_num}: this is no CSV: {wrong}."
        raise InvalidRequest(text, hint=_COLUMN_HINT) from wrong


def _quoted(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTED_LENGTH else f"{text[: MAX_QUOTED_LENGTH - 1]}…")


def _header(path: Path, header: Sequence[str]) -> Sequence[str]:
    header = [column.strip() for column in header]
    for column in header:
        if column not in _COLUMNS:
            raise InvalidRequest(
                f"{path}, line 1: there is no column {_quoted(column)}.",
                hint=f"Columns: {', '.join(_COLUMNS)}.",
            )
        if header.count(column) > 1:
            raise InvalidRequest(f"{path}, line 1: column {column} is there twice.")
    missing = [column for column in REQUIRED_COLUMNS if column not in header]
    if missing:
        text = f"{path}, line 1: the column {missing[0]} is missing."
        raise InvalidRequest(text, hint=_COLUMN_HINT)
    return header


def _row(where: str, header: Sequence[str], values: Sequence[str]) -> TraceRow:
    given: dict[str, Any] = {}
    for column, text in zip(header, values, strict=True):
        text = text.strip()  # noqa: PLW2901  ignore blanks after a comma
        if not text and column in OPTIONAL_COLUMNS:
            continue
        try:
            given[column] = _COLUMNS[column](text)
        except ValueError as wrong:
            raise InvalidRequest(f"{where}, column {column}: {_quoted(text)} {wrong}.") from None
    given["project"] = intern(given["project"])
    row = TraceRow(**given)
    wrong_together = _contradiction(row)
    if wrong_together:
        column, text = wrong_together
        raise InvalidRequest(f"{where}, column {column}: {text}.")
    return row


def _contradiction(row: TraceRow) -> tuple[str, str] | None:
    """Return the column and the error of contradictory values; None if they are consistent."""
    if row.gpu_memory_mib is not None:
        if row.gpus:
            return "gpu_memory_mib", f"{row.gpu_memory_mib} beside gpus; give one of them, and 0"
        if row.is_elastic:
            return "gpu_memory_mib", "elastic workers have one GPU each"
    elif not row.gpus:
        return "gpus", "'0' leaves nothing to schedule; give gpus or gpu_memory_mib"
    elif row.is_elastic:
        return _contradiction_of_elastic(row)
    elif row.workers is not None:
        each, over = divmod(row.gpus, row.workers)
        if over or (each > WHOLE_GPU and each % WHOLE_GPU):
            return "workers", f"{gpu_text(row.gpus)} GPUs cannot be divided among {row.workers}"
    return None


def _contradiction_of_elastic(row: TraceRow) -> tuple[str, str] | None:
    whole, rest = divmod(row.gpus, WHOLE_GPU)
    min_workers, max_workers = row.min_workers or 1, row.max_workers or whole
    if rest:
        return "gpus", "elastic workers have one GPU each, so the request must be whole"
    if row.workers not in {None, whole}:
        return "workers", f"{row.workers} elastic workers cannot be {whole} GPUs"
    if whole > MOST_WORKERS:
        return "gpus", f"{whole} elastic workers are too many; a job has at most {MOST_WORKERS}"
    if not min_workers <= whole <= max_workers:
        return (
            "gpus",
            f"{whole} is not between min_workers {min_workers} and max_workers {max_workers}",
        )
    return None


def in_whole_gpus(row: TraceRow, nodes: Sequence[Node]) -> TraceRow:
    """Return a row whose workers ask for whole GPUs instead of fractions, and do the same work."""
    workers = row.workers or 1
    each = row.gpus // workers
    if row.gpu_memory_mib is not None:
        device = min((n.device_memory_mib for n in nodes if n.device_memory_mib), default=Mib(0))
        each = fraction_of_memory(row.gpu_memory_mib, device) if device else WHOLE_GPU
    if each >= WHOLE_GPU or row.request is not None:
        return row
    return replace(
        row,
        gpus=workers * WHOLE_GPU,
        gpu_memory_mib=None,
        busy_pct=None if row.busy_pct is None else row.busy_pct * each / WHOLE_GPU,
    )


def shuffled(rows: Iterable[TraceRow], seed: int) -> list[TraceRow]:
    """Shuffle rows of the same second, and rename jobs to keep that order in ties.

    A trace has no order within a second, and a busy cluster's averages depend on it by some
    percent: run several seeds to see by how much.
    """
    chance = random.Random(seed)  # noqa: S311  not used for secrets
    keyed = [(row.submit_s, chance.random(), row) for row in rows]
    keyed.sort(key=lambda entry: entry[:2])
    return [replace(row, job=f"{n:08}:{row.job}") for n, (_, _, row) in enumerate(keyed)]
