"""Bounds of workloads without a GPU: how many may run, per user and in total.

Pure. The scheduler's quotas count only GPUs, so it starts every workload that requests none.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter

from runai.hub_service.scheduler.model.snapshot import Worker, WorkerState, Workload

FOR_USER, IN_ALL = 2, 8
"""Workers for each CPU core. They keep all cores busy while some wait for a disk."""

_WAITS = frozenset({WorkerState.PENDING, WorkerState.RESERVED})


@dataclass(frozen=True, slots=True)
class Bound:
    """The maximum of running workers without a GPU on so many CPU cores."""

    cores: int

    @property
    def for_user(self) -> int:
        """Return the number of one user's workers that may run at once."""
        return FOR_USER * self.cores

    @property
    def in_all(self) -> int:
        """Return the number of all users' workers that may run at once."""
        return IN_ALL * self.cores

    def per_core(self, many: int) -> str:
        """Return how a bound comes about: "2 for each of 4 cores"."""
        cores = f"each of {self.cores} cores" if self.cores > 1 else "the only core"
        return f"{many} for {cores}"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The workloads that may run, and the ones that wait."""

    shown: Mapping[str, Workload]
    """By name; some with fewer workers than they request."""
    held: Sequence[tuple[Workload, str]]
    """Each with the reason why it waits, oldest first."""


def admitted(workloads: Iterable[Workload], bound: Bound) -> Admitted:
    """Choose among workloads without a GPU, oldest first (by submission, then name).

    Running workers are always shown, and count. A workload starts with its minimum of workers or
    not at all; more of them start while there is room. A workload that does not fit yet blocks all
    younger ones of its user, so that none starves; if the machine is full, it blocks all users'
    younger ones.
    """
    oldest_first = [(w, _running(w)) for w in sorted(workloads, key=attrgetter("age"))]
    runs = Counter[str]()
    for workload, running in oldest_first:
        runs[workload.user] += running
    in_all = runs.total()
    shown: dict[str, Workload] = {}
    held: list[tuple[Workload, str]] = []
    full_for: dict[str, str] = {}
    """Why a user's remaining workloads wait."""
    full = ""
    for workload, running in oldest_first:
        user = workload.user
        why = full_for.get(user) or full
        if why and not running:
            held.append((workload, why))
            continue
        needs = max(workload.minimum - running, 0 if running else 1)
        room = 0 if why else min(bound.for_user - runs[user], bound.in_all - in_all)
        if needs > 0 and workload.minimum > bound.for_user:
            why = _never(workload.minimum, bound)
        elif needs > room and not why:
            if needs > bound.for_user - runs[user]:
                why, full_for[user] = _of_user(user, runs[user], needs, bound)
            else:
                why, full = _of_machine(in_all, needs, bound)
        more = 0 if why else max(0, min(len(workload.workers) - running, room))
        if running or more:
            shown[workload.name] = _with_workers(workload, running, more)
            runs[user] += more
            in_all += more
        else:
            held.append((workload, why))
    return Admitted(shown, held)


def _waits(worker: Worker) -> bool:
    return worker.state in _WAITS


def _running(workload: Workload) -> int:
    return sum(not _waits(worker) for worker in workload.workers)


def _with_workers(workload: Workload, running: int, more: int) -> Workload:
    """Return a workload with its running workers and the first `more` of its waiting ones."""
    if running + more == len(workload.workers):
        return workload
    starts = {w.name for w in islice(filter(_waits, workload.workers), more)}
    workers = tuple(w for w in workload.workers if not _waits(w) or w.name in starts)
    return replace(workload, workers=workers, min_workers=min(workload.minimum, len(workers)))


def _of_user(user: str, runs: int, needs: int, bound: Bound) -> tuple[str, str]:
    """Return why a workload waits for its user's, and why the ones behind it do."""
    per_core = bound.per_core(FOR_USER)
    text = f"{user} runs {runs} of at most {bound.for_user} workers without a GPU ({per_core})"
    return _endings(text, needs, is_full=runs >= bound.for_user)


def _of_machine(runs: int, needs: int, bound: Bound) -> tuple[str, str]:
    """Return why a workload waits for all users', and why the ones behind it do."""
    per_core = bound.per_core(IN_ALL)
    most = f"{runs} of at most {bound.in_all} workers without a GPU"
    text = f"{most} run on this machine ({per_core})"
    return _endings(text, needs, is_full=runs >= bound.in_all)


def _endings(text: str, needs: int, *, is_full: bool) -> tuple[str, str]:
    behind = "the next starts when one ends" if is_full else "an older one that needs more is next"
    first = f"this needs {needs} at once" if needs > 1 else behind
    return f"{text}; {first}", f"{text}; {behind}"


def _never(needs: int, bound: Bound) -> str:
    per_core = bound.per_core(FOR_USER)
    return (
        f"it needs {needs} workers without a GPU at once, and one user runs at most"
        f" {bound.for_user} here ({per_core})"
    )
