"""Target and status messages between a cluster and an elastic job's workers.

Their fields, JSON and files (`target.json`, `status/WORKER.json` in `RUNAI_ELASTIC_DIR`); see
docs/dev/elastic.md. Standard library only: workers import it.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


MOST = 2**53
"""Largest number that every JSON parser represents exactly."""


class MessageError(ValueError):
    """An invalid target or status message of an elastic job.

    The text names the source, usually a file, and the field.
    """


class Reason(StrEnum):
    """Cause of a new target."""

    START = "start"
    EXPAND = "expand"
    RECLAIM = "reclaim"
    """A project reclaims its quota, or a worker is gone: continue with fewer workers."""
    PAUSE = "pause"
    """All workers leave; the last one saves a checkpoint."""


class WorkerPhase(StrEnum):
    """State that an elastic worker reports of itself."""

    STARTING = "starting"
    READY = "ready"
    """Imports are done and the model is built: a new target may include the worker."""
    RUNNING = "running"
    DRAINING = "draining"
    LEFT = "left"
    """Its device is free; the end of the process frees the remaining memory."""


@dataclass(frozen=True, slots=True)
class Target:
    """Workers that train from now on. `gen` only grows; workers ignore a lower `gen`."""

    gen: int
    ranks: tuple[str, ...]
    """Names of the workers in the order of their ranks; the first opens the store."""
    store: str
    """`host:port` of this generation's own store."""
    gpus: int
    """Number of devices over all ranks."""
    least: int
    most: int
    reason: Reason = Reason.START
    deadline: str = ""
    """When leaving workers are killed (RFC 3339); empty: never."""

    def to_json(self) -> dict[str, Any]:
        """Return the file's JSON object."""
        fields = asdict(self) | {"ranks": list(self.ranks), "reason": self.reason.value}
        fields["min"], fields["max"] = fields.pop("least"), fields.pop("most")
        return fields

    @classmethod
    def from_json(cls, value: Mapping[str, Any], source: str = "target") -> Target:
        """Parse the JSON object of a file; `source` names it in errors.

        Raises:
            MessageError: if a field is missing or of another type.
        """
        fields = _Fields(value, source)
        reason = fields.one_of("reason", Reason)
        ranks = fields.of("ranks", list)
        if not all(isinstance(rank, str) for rank in ranks):
            raise MessageError(f"{source}: `ranks` must name the workers, not {ranks!r}.")
        if not ranks and reason is not Reason.PAUSE:
            raise MessageError(f"{source}: `ranks` is empty; only a pause leaves nobody.")
        return cls(
            gen=fields.of("gen", int),
            ranks=tuple(ranks),
            store=fields.of("store", str),
            gpus=fields.of("gpus", int),
            least=fields.of("min", int),
            most=fields.of("max", int),
            reason=reason,
            deadline=fields.of("deadline", str, ""),
        )


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker's report of its progress and speed."""

    worker: str
    gen: int
    state: WorkerPhase
    pid: int
    update: int = 0
    """Weight updates since the job's first start."""
    samples_per_s: float = 0.0
    """Speed of the whole job, not of this worker; 0 while unknown."""
    gpus: int = 0
    """Number of GPUs during that measurement."""
    global_batch: int = 0
    """Samples per update over all ranks; 0 while unknown."""
    steps: int = 0
    """Micro-batches per update on each rank."""

    def to_json(self) -> dict[str, Any]:
        """Return the file's JSON object."""
        return asdict(self) | {"state": self.state.value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], source: str = "status") -> WorkerStatus:
        """Parse the JSON object of a file; `source` names it in errors.

        Raises:
            MessageError: if a field is missing or of another type.
        """
        fields = _Fields(value, source)
        return cls(
            worker=fields.of("worker", str),
            gen=fields.of("gen", int),
            state=fields.one_of("state", WorkerPhase),
            pid=fields.of("pid", int),
            update=fields.of("update", int, 0),
            samples_per_s=fields.of("samples_per_s", float, 0.0),
            gpus=fields.of("gpus", int, 0),
            global_batch=fields.of("global_batch", int, 0),
            steps=fields.of("steps", int, 0),
        )


class ElasticFiles:
    """The directory shared by a job's cluster and its workers. Writes replace files atomically."""

    def __init__(self, directory: Path) -> None:
        """Store the path; the first write creates the directory."""
        self.directory = directory
        self.target_path = directory / "target.json"

    def write_target(self, target: Target) -> None:
        """Write the target for all workers."""
        _replace(self.target_path, target.to_json())

    def target(self) -> Target | None:
        """Read the target; None if there is none yet.

        Raises:
            MessageError: if the file is not a target.
        """
        value = _read(self.target_path)
        return None if value is None else Target.from_json(value, str(self.target_path))

    def write_status(self, status: WorkerStatus) -> None:
        """Write a worker's status."""
        _replace(self._status_path(status.worker), status.to_json())

    def status(self, worker: str) -> WorkerStatus | None:
        """Read a worker's last status; None if it wrote none.

        Raises:
            MessageError: if the file is not a status.
        """
        path = self._status_path(worker)
        value = _read(path)
        return None if value is None else WorkerStatus.from_json(value, str(path))

    def statuses(self) -> dict[str, WorkerStatus]:
        """Read the last status of each worker by name; skip unreadable files."""
        statuses: dict[str, WorkerStatus] = {}
        for path in sorted((self.directory / "status").glob("*.json")):
            with contextlib.suppress(MessageError):
                value = _read(path)
                if value is not None:
                    statuses[path.stem] = WorkerStatus.from_json(value, str(path))
        return statuses

    def _status_path(self, worker: str) -> Path:
        # The platform's name of a worker is `project/name-0`; its file has the last part only.
        return self.directory / "status" / f"{worker.rpartition('/')[2]}.json"


class _Fields:
    """A JSON object with type-checked access to its fields."""

    def __init__(self, value: Mapping[str, Any], source: str) -> None:
        self._value, self._source = value, source

    def of(self, name: str, kind: type[T], default: T | None = None) -> T:
        """Return a field; raise MessageError if it is missing or of another type."""
        value = self._value.get(name, default)
        if isinstance(value, int | float) and not abs(value) <= MOST:  # true for NaN too
            raise MessageError(f"{self._source}: `{name}` is too large a number.")
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or value is True or value is False:
            raise MessageError(f"{self._source}: `{name}` cannot be {value!r}.")
        return value

    def one_of(self, name: str, choices: type[E]) -> E:
        """Return a field that is one of the choices; raise MessageError if it is none."""
        value = self.of(name, str)
        known = [choice.value for choice in choices]
        if value not in known:
            raise MessageError(f"{self._source}: `{name}` is {value!r}; known are {known}.")
        return choices(value)


def _read(path: Path) -> Mapping[str, Any] | None:
    """Read a JSON object; None without the file. Raise MessageError for other content."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MessageError(f"{path} holds no object but {type(value).__name__}.")
    return value


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file atomically, so that no reader sees a partial one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(name, path)  # noqa: PTH105 - mkstemp returns str
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise
