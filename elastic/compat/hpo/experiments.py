"""Experiments of a search, shared by many processes through one file: `runai.yaml`.

The file has the original library's format and a lock; paused experiments are picked first.
"""

from __future__ import annotations

import datetime as dt
import enum
import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from runai.hub_service.processes.per_process import CreatorProcess
from runai.utils.flock import Flock

TIME: Final = "%d/%m/%Y %H:%M:%S"


class HpoError(RuntimeError):
    """Error: the search cannot continue; the message names the fix."""


class Status:
    """The states of an experiment."""

    Unassigned = "unassigned"
    Assigned = "assigned"
    Preempted = "preempted"


class Strategy(enum.Enum):
    """The set of experiments."""

    GridSearch = 0
    """Every combination once."""
    RandomSearch = 1
    """A random combination for each pick."""


class _Search:
    """The file of a search, and this process's experiment."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "runai.yaml"
        self.experiment: int | None = None
        self._lock = Flock(directory / "runai.yaml.lock")
        self._thread_lock = threading.RLock()
        self._is_writing = False
        self.after_write: Callable[[], None] | None = None
        """Callback after the current write, if a signal arrived meanwhile."""

    @contextmanager
    def changed(self) -> Iterator[dict[str, Any]]:
        """Yield the file's content under its lock, and write it back atomically."""
        yaml = _yaml()
        with self._thread_lock:
            self._is_writing = True
            try:
                with self._lock:
                    yield from self._read_and_replace(yaml)
            finally:
                self._is_writing = False
        if self.after_write is not None:
            self.after_write()

    def _read_and_replace(self, yaml: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a module
        """Yield the file's content, then replace the file by it."""
        if self.path.exists():
            content = yaml.safe_load(self.path.read_text(encoding="utf-8"))
        else:
            content = {"creationTime": _now()}
        yield content
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(yaml.safe_dump(content), encoding="utf-8")
        temporary.replace(self.path)

    def own(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return this process's experiment."""
        found = [e for e in content.get("experiments", []) if e["id"] == self.experiment]
        if len(found) != 1:
            raise HpoError(f"{self.path} does not have experiment {self.experiment} once.")
        own: dict[str, Any] = found[0]
        return own

    def preempt(self, then: Callable[[], None]) -> None:
        """Mark the experiment as preempted, then call `then`; wait for a running write."""
        if self._is_writing:  # the signal interrupted a write, and the lock is not reentrant
            self.after_write = lambda: self.preempt(then)
            return
        self.after_write = None
        if self.experiment is not None:
            with self.changed() as content:
                _mark(content, self.own(content), Status.Preempted)
        then()


_search: _Search | None = None


def init(root: str | os.PathLike[str], subdir: str | None = None) -> None:
    """Join the search of a shared directory.

    SIGTERM marks the picked experiment as preempted, then calls the previous handler, else exits
    with status 1.

    Args:
        root: an existing directory on a file system that all processes share.
        subdir: a directory below it, created if missing.

    Raises:
        FileNotFoundError: if the root does not exist.
        ImportError: if PyYAML is not installed.
    """
    global _search  # noqa: PLW0603 - one search for each process, as in the original
    _yaml()
    directory = Path(root)
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} is no directory; a search needs one that is shared.")
    if subdir is not None:
        directory /= subdir
        directory.mkdir(exist_ok=True)
    first = _search is None
    _search = _Search(directory)
    # Python delivers signals to the main thread only; one handler serves all later searches.
    if first and threading.current_thread() is threading.main_thread():
        _install_handler(signal.getsignal(signal.SIGTERM))


def pick(grid: Mapping[str, Sequence[Any]], strategy: Strategy) -> dict[str, Any]:
    """Pick an experiment, a preempted one first, and return its configuration.

    Args:
        grid: possible values of each parameter.
        strategy: every combination once, or random ones.

    Raises:
        HpoError: if every combination was picked, or `init` was not called.
        ValueError: if the strategy is no `Strategy`.
    """
    if not isinstance(strategy, Strategy):
        raise ValueError(f"The strategy must be a runai.hpo.Strategy, not {strategy!r}.")  # noqa: TRY004
    search = _joined_search()
    with search.changed() as content:
        if "experiments" not in content:
            every = _combinations(grid) if strategy is Strategy.GridSearch else []
            content["experiments"] = [
                {"id": number, "status": Status.Unassigned, "config": config}
                for number, config in enumerate(every, start=1)
            ]
        experiments = content["experiments"]
        free = [e for e in experiments if e["status"] == Status.Preempted]
        if strategy is Strategy.GridSearch:
            free += [e for e in experiments if e["status"] == Status.Unassigned]
        elif not free:
            sample = {name: random.choice(values) for name, values in grid.items()}  # noqa: S311  no secret
            number = max((e["id"] for e in experiments), default=0) + 1
            experiments.append({"id": number, "config": sample})
            free = experiments[-1:]
        if not free:
            raise HpoError(
                f"All {len(experiments)} experiments of {search.path} were picked; start another"
                " search in another directory."
            )
        _mark(content, free[0], Status.Assigned)
        search.experiment = free[0]["id"]
        config: dict[str, Any] = dict(free[0]["config"])
    return config


def report(epoch: int, metrics: Mapping[str, Any]) -> None:
    """Record an epoch's metrics of the experiment; NumPy numbers and tensors are converted.

    Raises:
        HpoError: if no experiment was picked.
    """
    search = _joined_search()
    if search.experiment is None:
        raise HpoError("Nothing to report about: call runai.hpo.pick(grid, strategy) first.")
    plain = {name: getattr(value, "item", lambda v=value: v)() for name, value in metrics.items()}
    with search.changed() as content:
        reports = search.own(content).setdefault("reports", [])
        reports.append({"epoch": int(epoch), "metrics": plain, "reportTime": _now()})


def _install_handler(before: Any) -> None:  # noqa: ANN401 - the type of `signal.getsignal`
    """Handle SIGTERM by marking the experiment, then as `before` does."""
    process = CreatorProcess()

    def leave(signum: int, frame: FrameType | None) -> None:
        if process.delegate_signal(before, signum):
            return

        def continue_signal() -> None:
            if callable(before):
                before(signum, frame)
            elif before is not signal.SIG_IGN:
                raise SystemExit(1)

        _joined_search().preempt(continue_signal)

    signal.signal(signal.SIGTERM, leave)


def _joined_search() -> _Search:
    if _search is None:
        raise HpoError("No search was joined: call runai.hpo.init(directory) first.")
    return _search


def _combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _mark(content: dict[str, Any], experiment: dict[str, Any], status: str) -> None:
    experiment["status"] = status
    experiment["modificationTime"] = content["modificationTime"] = _now()


def _now() -> str:
    return dt.datetime.now(dt.UTC).astimezone().strftime(TIME)


def _yaml() -> Any:  # noqa: ANN401 - a module
    try:
        import yaml  # noqa: PLC0415 - no dependency of the base install
    except ImportError:
        raise ImportError("runai.hpo keeps its experiments as YAML: pip install pyyaml") from None
    return yaml
