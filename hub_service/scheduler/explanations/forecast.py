"""Forecast of starts: `decide` simulated in virtual time (X).

Ends of running workloads are stated or estimated. In each cycle, ended workloads leave, the plan's
starts run, and stopped jobs queue again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from runai.hub_service.scheduler.model.explanation import ExpectedStart
from runai.hub_service.scheduler.model.quantity import duration_text
from runai.hub_service.scheduler.model.snapshot import (
    Decision,
    End,
    Move,
    Plan,
    Resize,
    Snapshot,
    Stop,
    Unreserve,
    Worker,
    WorkerState,
    Workload,
    end_of,
)
from runai.hub_service.scheduler.model.what_if import pending_again, worker_after
from runai.hub_service.scheduler.state.cluster_index import (
    ClusterIndex,
    SnapshotChanges,
    changes_between,
)

DecideFunction = Callable[[Snapshot | ClusterIndex], Plan]

_PAUSES_COUNT_FOR = 3600  # seconds (R8)
_MAX_CYCLES_PER_MOMENT = 8

SHORTER, EXPECTED, LONGER = (1, 3), (1, 1), (3, 1)
"""Factors of the elapsed time that give the rest of a run of unknown length.

If only the elapsed time t is known, the odds that it lasts x more are t / (t + x): even for x = t,
three to one for t / 3, and one to three for 3t (J. R. Gott, Nature 363, 1993; the Lindy effect).
"Between earliest and latest" is therefore right in half of the cases.
"""


def expected_start(
    snapshot: Snapshot, name: str, decide: DecideFunction, *, cycles: int
) -> ExpectedStart:
    """Return the expected start of one waiting workload; see `expected_starts`."""
    return expected_starts(snapshot, [name], decide, cycles=cycles)[name]


def expected_starts(
    snapshot: Snapshot,
    names: Collection[str],
    decide: DecideFunction,
    *,
    cycles: int,
) -> dict[str, ExpectedStart]:
    """Return when each waiting workload starts if nothing else is submitted.

    If run times are estimated, the simulation runs three times: with expected, shorter and longer
    run times, each for at most `cycles` cycles. Many workloads cost hardly more than the one that
    starts last.
    """
    # Skip wait reasons: nothing reads these plans, and sentences cost time.
    silent = replace(snapshot, policy=replace(snapshot.policy, explain="none"))
    index = ClusterIndex(silent)
    simulation = _Simulation(index, silent, decide, EXPECTED)
    factors = (SHORTER, LONGER) if simulation.has_estimates() else ()
    runs = [simulation.starts_of(names, cycles)]
    runs += [_Simulation(index, silent, decide, f).starts_of(names, cycles) for f in factors]
    start_by_simulated: dict[tuple[_SimulatedStart, ...], ExpectedStart] = {}
    starts: dict[str, ExpectedStart] = {}
    for name in names:
        simulated = tuple([run[name] for run in runs])
        # Thousands start after the horizon and share one result.
        if simulated not in start_by_simulated:
            start_by_simulated[simulated] = _combined(simulated, snapshot.now)
        starts[name] = start_by_simulated[simulated]
    return starts


class _SimulatedStart(NamedTuple):
    at: int | None
    until: int | None
    """Time at which the simulation stopped at its limit. None if it ran to the end."""
    is_estimated: bool


def _combined(simulated: Sequence[_SimulatedStart], now: int) -> ExpectedStart:
    """Combine the simulations into one expected start, the expected simulation first."""
    expected = simulated[0]
    starts = [simulated_start.at for simulated_start in simulated if simulated_start.at is not None]
    # A simulation that stopped early implies a start later than its last moment.
    bounds = [simulated_start.until for simulated_start in simulated]
    start = ExpectedStart(
        at=expected.at,
        earliest=min([*starts, *(b for b in bounds if b is not None)], default=None),
        latest=max(starts) if len(starts) == len(simulated) else None,
        is_estimated=any(simulated_start.is_estimated for simulated_start in simulated),
        text="",
    )
    return replace(start, text=_sentence(start, expected.until, now))


class _Simulation:
    """One simulation on an index, which may come from another simulation."""

    def __init__(
        self,
        index: ClusterIndex,
        snapshot: Snapshot,
        decide: DecideFunction,
        factor: tuple[int, int],
    ) -> None:
        self._decide = decide
        self._index = index
        index.apply(changes_between(index.snapshot(), snapshot))
        policy = snapshot.policy
        self._counts_pauses = (
            policy.max_pauses_per_hour is not None or policy.max_moves_per_hour is not None
        )
        self._min_runtimes = {p.min_runtime for p in snapshot.projects if p.min_runtime}
        self._now = snapshot.now
        self._workloads = {workload.name: workload for workload in snapshot.workloads}
        workloads = snapshot.workloads
        self._active = {w.name: None for w in workloads if not _only_waits(w)}
        """Workloads that time may change: only few of thousands that wait."""
        self._changed: set[str] = set(self._workloads)
        """Workloads that may have started since `starts_of` last checked."""
        self._ends: dict[str, End] = {}
        self._remaining: dict[str, End] = {}
        """Remaining run time, in seconds, of workloads that do not run."""
        self._is_estimated = False
        """True if any end so far was estimated."""
        for workload in workloads:
            end = end_of(workload, snapshot.now, factor)
            if end is not None:
                self._ends[workload.name] = end
        typical = _typical_run(snapshot, self._ends)
        for workload in workloads:
            if workload.name not in self._ends:
                stated = workload.expected_runtime
                remaining = typical if stated is None else End(stated, is_estimated=False)
                if remaining is not None:
                    self._remaining[workload.name] = remaining

    def starts_of(self, names: Collection[str], cycles: int) -> dict[str, _SimulatedStart]:
        """Simulate until each of these workloads has started, at most `cycles` cycles."""
        starts: dict[str, _SimulatedStart] = {}
        requested = frozenset(names)
        cycles_now = 0
        for _ in range(cycles):
            plan = self._decide(self._index)
            frees = self._apply(plan)
            for name in self._changed & requested:
                if name not in starts and self._is_settled(name):
                    at = self._now if name in self._workloads else None
                    starts[name] = _SimulatedStart(at, None, self._is_estimated)
            self._changed.clear()
            if len(starts) == len(names):
                return starts
            cycles_now = cycles_now + 1 if frees else 0
            if frees and cycles_now < _MAX_CYCLES_PER_MOMENT:
                continue  # reservations start now, after their victims have left (R7)
            if not self._advance():
                never = _SimulatedStart(None, None, self._is_estimated)
                return dict.fromkeys(names, never) | starts
        return dict.fromkeys(names, _SimulatedStart(None, self._now, self._is_estimated)) | starts

    def _is_settled(self, name: str) -> bool:
        """Return True if a workload's minimum runs, or it will never queue again."""
        workload = self._workloads.get(name)
        if workload is None:
            return True
        running = [w for w in workload.workers if w.state is WorkerState.RUNNING]
        return len(running) >= workload.minimum

    def has_estimates(self) -> bool:
        """Return True if any run time is estimated."""
        return any(end.is_estimated for end in (*self._ends.values(), *self._remaining.values()))

    # ---- effects of a plan

    def _apply(self, plan: Plan) -> bool:
        """Apply a plan; return True if it freed capacity."""
        changes: dict[str, dict[str, Decision]] = {}
        for decision in plan.decisions:
            if decision.kind != "wait":
                changes.setdefault(decision.workload, {})[decision.worker] = decision
        for name, by_worker in changes.items():
            workload = self._workloads[name]
            workers = tuple(
                worker_after(w, by_worker.get(w.name), self._now) for w in workload.workers
            )
            after = replace(workload, workers=workers)
            was_running, is_running = _is_running(workload), _is_running(after)
            if is_running and not was_running:
                self._start(name)
            elif was_running and not is_running:
                after = self._pause(after)
                if after.kind == "session":
                    self._remove([name])  # Q5: it ends and does not queue again
                    continue
            self._store(after)
        return any(isinstance(d, Stop | Move | Resize | Unreserve) for d in plan.decisions)

    def _start(self, name: str) -> None:
        """Set a workload's end from its remaining run time."""
        remaining = self._remaining.pop(name, None)
        if remaining is not None:
            self._ends[name] = End(self._now + remaining.at, remaining.is_estimated)

    def _pause(self, workload: Workload) -> Workload:
        """Turn a workload's end into remaining run time; return it with one more pause."""
        end = self._ends.pop(workload.name, None)
        if end is not None:
            self._remaining[workload.name] = End(end.at - self._now, end.is_estimated)
        return replace(workload, pauses=(*workload.pauses, self._now))

    # ---- effects of time

    def _advance(self) -> bool:
        """Advance to the next moment of a change; return False if there is none."""
        moments = [end.at for end in self._ends.values()]
        moments += self._rule_changes()
        later = [moment for moment in moments if moment > self._now]
        if not later:
            return False
        self._now = min(later)
        ended = {name: end for name, end in self._ends.items() if end.at <= self._now}
        for name, end in ended.items():
            self._is_estimated |= end.is_estimated
            del self._ends[name]
        self._remove(ended)
        for workload in [self._workloads[name] for name in self._active]:
            workers = tuple(_pending_once_stopped(worker, self._now) for worker in workload.workers)
            if workers != workload.workers:
                self._store(replace(workload, workers=workers))
        self._index.apply(SnapshotChanges(now=self._now))
        return True

    def _store(self, workload: Workload) -> None:
        self._workloads[workload.name] = workload
        self._changed.add(workload.name)
        if _only_waits(workload):
            self._active.pop(workload.name, None)
        else:
            self._active[workload.name] = None
        self._index.apply(SnapshotChanges(workloads=(workload,)))

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            del self._workloads[name]
            self._changed.add(name)
            self._active.pop(name, None)
            self._index.apply(SnapshotChanges(removed=(name,)))

    def _rule_changes(self) -> Iterable[int]:
        """Yield the times when R8 or R11 allow more, or a stopping worker has exited."""
        for workload in map(self._workloads.__getitem__, self._active):
            for worker in workload.workers:
                if worker.state is WorkerState.STOPPING:
                    yield max(self._now + 1, worker.gone_by or 0)
                elif worker.state is WorkerState.RUNNING and worker.started is not None:
                    for min_runtime in self._min_runtimes:
                        yield worker.started + min_runtime
            if workload.below_min_since is not None:
                yield workload.below_min_since + workload.grace + 1
            if self._counts_pauses:
                for paused in workload.pauses:
                    yield paused + _PAUSES_COUNT_FOR


def _typical_run(snapshot: Snapshot, ends: Mapping[str, End]) -> End | None:
    """Return the median of running workloads, as the run time of one without any estimate."""
    runs = []
    for workload in snapshot.workloads:
        end = ends.get(workload.name)
        starts = [w.started for w in workload.workers if w.started is not None]
        if end is not None and starts:
            runs.append(end.at - min(starts))
    return End(sorted(runs)[len(runs) // 2], is_estimated=True) if runs else None


def _is_running(workload: Workload) -> bool:
    return any(worker.state is WorkerState.RUNNING for worker in workload.workers)


def _only_waits(workload: Workload) -> bool:
    """Return True if it only waits, and no rule depends on its past."""
    return (
        workload.below_min_since is None
        and not workload.pauses
        and all(worker.state is WorkerState.PENDING for worker in workload.workers)
    )


def _pending_once_stopped(worker: Worker, now: int) -> Worker:
    if worker.state is WorkerState.STOPPING and (worker.gone_by is None or worker.gone_by <= now):
        return pending_again(worker)
    return worker


def refreshed(start: ExpectedStart, now: int) -> ExpectedStart:
    """Update the sentence to a later time: "in 90 seconds" becomes "in 60"."""
    return start if start.at is None else replace(start, text=_sentence(start, None, now))


def _sentence(start: ExpectedStart, horizon: int | None, now: int) -> str:
    """Format an expected start; `horizon` is when a simulation without a start stopped early."""
    if start.at is None and horizon is None:
        return "start unknown: no running job with a known end frees enough GPUs"
    if start.at is None:
        return f"not within {duration_text((horizon or now) - now)}, where the forecast ends"
    if start.at <= now:
        return "starts as soon as the jobs that make room for it have stopped"
    text = f"expected to start in {duration_text(start.at - now)}"
    if not start.is_estimated:
        return text
    earliest = now if start.earliest is None else start.earliest
    soonest = duration_text(earliest - now) if earliest > now else "now"
    longest = "much later" if start.latest is None else duration_text(start.latest - now)
    return f"{text} (run times are estimated: between {soonest} and {longest})"
