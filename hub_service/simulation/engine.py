"""The event loop in virtual time: submissions, ends, scheduling cycles, execution of plans.

A pause takes effect at once. A cycle for the freed GPUs runs at the same instant, any other at
most once in `every` seconds, like the live service.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from runai.hub_service.scheduler.cycle import decide
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import (
    SHIPPED,
    Move,
    Node,
    Plan,
    Policy,
    Project,
    Reserve,
    Resize,
    Snapshot,
    Start,
    Unreserve,
    Wait,
    WorkerState,
    Workload,
)
from runai.hub_service.scheduler.state.cluster_index import ClusterIndex, SnapshotChanges
from runai.hub_service.simulation.jobs import SimulatedJob
from runai.hub_service.simulation.policies import PartPlan, PolicyName, parts_of, quotas_of
from runai.hub_service.simulation.results import Results, SimulationTotals
from runai.hub_service.simulation.timeline import AllocationTimeline
from runai.hub_service.simulation.traces import TraceRow, in_whole_gpus
from runai.hub_service.wire.errors import InvalidRequest


class PartScheduler:
    """Scheduler of one independently scheduled part of the simulated cluster.

    Its index of the part is updated from changes, not rebuilt for each decision.
    """

    def __init__(self, nodes: Sequence[Node], projects: Sequence[Project], policy: Policy) -> None:
        """Start with an empty cluster."""
        snapshot = Snapshot(policy=policy, nodes=tuple(nodes), projects=tuple(projects))
        self._index = ClusterIndex(snapshot)

    def decide(self, now: int, changed: Iterable[Workload], removed: Iterable[str]) -> Plan:
        """Apply new, changed and removed workloads to the index; return the plan."""
        changes = SnapshotChanges(now=now, workloads=tuple(changed), removed=tuple(removed))
        self._index.apply(changes)
        return decide(self._index)


EVERY_S: Final = 10
BEYOND: Final = 800
_MAX_CYCLES_AT_ONCE: Final = 20
"""Maximum number of cycles at one instant; further freed GPUs wait for the next interval."""
_REPORT_EVERY: Final = 250
_MINUTE: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Cluster, projects and measured window of a run. Times in seconds."""

    nodes: Sequence[Node]
    projects: Sequence[Project]
    policy: Policy = SHIPPED
    since: int | None = None
    """Start of the measured window; None: the first submission."""
    until: int | None = None
    """End of the window; None: the last submission. Jobs then run to their ends."""
    every: int = EVERY_S
    beyond: int = BEYOND
    """Speed of an elastic worker above the request, in thousandths of one below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Results of the replay of a trace."""

    results: Results
    never_ran: int
    """Jobs that never fitted; no other figure counts them."""
    mean_waits: Mapping[str, float]
    """Mean wait of each project, in seconds."""
    longest_violation_s: int
    """Longest uninterrupted violation of a quota."""
    ended_s: int
    """Second of the last event, after which nothing runs."""


class _Part:
    """Nodes that are scheduled independently, and their jobs."""

    def __init__(self, plan: PartPlan) -> None:
        self.plan = plan
        self.decider = PartScheduler(plan.nodes, plan.projects, plan.policy)
        self.free = sum(node.devices for node in plan.nodes) * WHOLE_GPU
        self.capacity = self.free
        self.largest = max((node.devices for node in plan.nodes), default=0)
        self.jobs: dict[str, SimulatedJob] = {}
        self.changed: dict[str, SimulatedJob] = {}
        self.removed: list[str] = []
        self.queue: deque[SimulatedJob] = deque()
        """Strict order only: waiting jobs that the scheduler does not have, first in first out."""
        self.head_jobs: list[SimulatedJob] = []
        """Strict order only: the head of the queue, which the scheduler has."""
        self.waiting = 0
        self.due: int | None = None
        """Time of the next cycle; None: none is requested."""
        self.last = -(1 << 60)
        """Time of the last cycle."""
        self.cycles_at_once = 0
        """Cycles at the present instant, after its first."""

    def expose_head(self) -> None:
        """Pass the startable jobs of a strict queue to the scheduler, at least its head."""
        requested = sum(job.size for job in self.head_jobs)
        while self.queue and (requested <= self.free or not self.head_jobs):
            job = self.queue.popleft()
            self.head_jobs.append(job)
            self.changed[job.name] = job
            requested += job.size


class _Engine:
    def __init__(
        self,
        rows: Sequence[TraceRow],
        parts: Sequence[PartPlan],
        setting: Setting,
        meter: SimulationTotals,
        on_plan: Callable[[int, Plan], None] | None,
    ) -> None:
        self.rows = rows
        self.parts = [_Part(plan) for plan in parts]
        self.part_of = {owner: part for part in self.parts for owner in part.plan.owners}
        self.node_gpus = max((node.devices for node in setting.nodes), default=0)
        self.min_runtime = max((p.min_runtime for p in setting.projects), default=0)
        self.setting = setting
        self.meter = meter
        self.on_plan = on_plan
        self.ends: list[tuple[int, int, SimulatedJob, int]] = []
        """Heap of ends: time, serial number, job, and the job's version for which it holds."""
        self.wakes: list[tuple[int, int]] = []
        """Heap of times with the number of the part that gets a cycle then."""
        self.scheduled_wakes: set[tuple[int, int]] = set()
        self.now = 0
        self.ended = 0
        self.refused = 0
        self._serial = 0

    # ---- time

    def run(self, progress: Callable[[int], None] | None) -> None:
        """Advance from event to event until none is left."""
        upcoming = 0
        while True:
            now = self._next_event_time(upcoming)
            if now is None:
                return
            self.now = now
            self.meter.advance(now)
            touched: set[str] = set()
            while self.ends and self.ends[0][0] <= now:
                _, _, job, version = heappop(self.ends)
                if version == job.version:
                    self._end(job, now)
                    touched.add(job.row.project)
                    if progress is not None and self.ended % _REPORT_EVERY == 0:
                        progress(self.ended)
            while upcoming < len(self.rows) and self.rows[upcoming].submit_s <= now:
                self._submit(self.rows[upcoming], now)
                touched.add(self.rows[upcoming].project)
                upcoming += 1
            while self.wakes and self.wakes[0][0] <= now:
                wake = heappop(self.wakes)
                self.scheduled_wakes.discard(wake)
                if self.parts[wake[1]].waiting:
                    self._request_cycle(self.parts[wake[1]], now)
            for part in self.parts:
                while part.due is not None and part.due <= now:
                    touched.update(self._cycle(part, now))
            self.meter.settle(touched)

    def _next_event_time(self, upcoming: int) -> int | None:
        """Drop ends that are out of date; return the time of the next event, None without one."""
        while self.ends and self.ends[0][3] != self.ends[0][2].version:
            heappop(self.ends)
        times = [part.due for part in self.parts if part.due is not None]
        if self.ends:
            times.append(self.ends[0][0])
        if upcoming < len(self.rows):
            times.append(self.rows[upcoming].submit_s)
        if self.wakes:
            times.append(self.wakes[0][0])
        return min(times, default=None)

    def _request_cycle(self, part: _Part, now: int) -> None:
        """Schedule a cycle after a submission or freed GPUs."""
        if part.due is None:
            part.due = max(now, part.last + self.setting.every)

    # ---- events

    def _submit(self, row: TraceRow, now: int) -> None:
        """Add a job to its part and request a cycle; refuse one that can never fit."""
        part = self.part_of[row.project]
        job = (
            SimulatedJob(row, self.node_gpus, self.setting.beyond)
            if row.may_fit(part.capacity)
            else None
        )
        if job is None or job.size > part.capacity or job.largest > part.largest * WHOLE_GPU:
            self.refused += 1
            return
        job.since = now
        part.jobs[job.name] = job
        if part.plan.is_strict:
            part.queue.append(job)
        else:
            part.changed[job.name] = job
        part.waiting += 1
        self.meter.wait(row.project, job.size, 1)
        self._request_cycle(part, now)

    def _end(self, job: SimulatedJob, now: int) -> None:
        """Remove a finished job, with its times, and request a cycle."""
        row = job.row
        part = self.part_of[row.project]
        self._update_progress(job, now)
        del part.jobs[job.name]
        part.changed.pop(job.name, None)
        part.removed.append(job.name)
        part.free += job.allocated
        self.meter.record_allocation(row.project, -job.allocated)
        jct = now - row.submit_s
        self.meter.finish(row.project, wait_s=jct - job.ran_s, jct_s=jct, duration_s=row.duration_s)
        job.version += 1
        self.ended += 1
        self._request_cycle(part, now)

    def _update_progress(self, job: SimulatedJob, now: int) -> None:
        """Update a job's progress to `now`, and the meter."""
        since = job.since
        spent = job.advance(now)
        if job.is_up and job.row.busy_pct is not None:
            self.meter.use(since + spent, now, job.allocated * job.row.busy_pct / 100)
        if job.allocated:
            job.allocated_s += job.allocated * self.meter.measured(since, now)
            if spent:
                self.meter.spend(job.allocated * self.meter.measured(since, since + spent))

    # ---- cycles

    def _cycle(self, part: _Part, now: int) -> set[str]:
        """Run one scheduling cycle of a part; return the projects whose allocation has changed."""
        part.cycles_at_once = part.cycles_at_once + 1 if part.last == now else 0
        part.due, part.last = None, now
        if part.plan.is_strict:
            part.expose_head()
        plain, queue = part.plan.is_plain, part.plan.queue
        plan = part.decider.decide(
            now,
            (
                job.workload(queue or job.row.project, is_plain=plain)
                for job in part.changed.values()
            ),
            part.removed,
        )
        part.changed.clear()
        part.removed.clear()
        if self.on_plan is not None:
            self.on_plan(now, plan)
        return self._execute(part, plan, now)

    def _execute(self, part: _Part, plan: Plan, now: int) -> set[str]:
        """Carry out a plan, and request a cycle at once if it freed GPUs; return its projects."""
        previous: dict[SimulatedJob, tuple[bool, int]] = {}
        moved: set[SimulatedJob] = set()
        allowed = _allowed_to_start(part, plan) if part.plan.is_strict else None
        has_freed = False
        for decision in plan.decisions:
            if isinstance(decision, Wait):
                continue
            if allowed is not None and decision.workload not in allowed:
                continue
            job = part.jobs[decision.workload]
            if job not in previous:
                previous[job] = job.is_up, job.allocated
                self._update_progress(job, now)
            index = job.index_of(decision.worker)
            if isinstance(decision, Start | Resize):
                if isinstance(decision, Resize):
                    job.overhead = job.row.checkpoint_cost_s or 0
                job.place(index, WorkerState.RUNNING, decision.node, decision.devices, now)
            elif isinstance(decision, Reserve):
                job.place(index, WorkerState.RESERVED, decision.node, decision.devices, now)
                # A pause takes effect at once: the reserved devices are free already.
                has_freed = True
            else:
                job.release(index)
                has_freed = has_freed or not isinstance(decision, Unreserve)
                if isinstance(decision, Move):
                    moved.add(job)
        for job, (was_up, before) in previous.items():
            self._apply_changes(part, job, now, was_up=was_up, before=before, is_moved=job in moved)
        if part.head_jobs:
            part.head_jobs = [job for job in part.head_jobs if not job.is_up]
        if has_freed:
            part.due = (
                now if part.cycles_at_once < _MAX_CYCLES_AT_ONCE else now + self.setting.every
            )
        return {job.row.project for job in previous}

    def _apply_changes(
        self, part: _Part, job: SimulatedJob, now: int, *, was_up: bool, before: int, is_moved: bool
    ) -> None:
        """Update meter, pauses and end time of a job that a plan changed."""
        row, meter = job.row, self.meter
        part.changed[job.name] = job
        part.free -= job.allocated - before
        meter.record_allocation(row.project, job.allocated - before)
        job.version += 1
        if was_up and not job.is_up:
            meter.pauses += not is_moved
            meter.moves += is_moved
            part.waiting += 1
            meter.wait(row.project, job.size, 1)
            job.overhead = row.checkpoint_cost_s or 0
            policy = self.setting.policy
            if policy.max_pauses_per_hour is not None or policy.max_moves_per_hour is not None:
                job.pauses = (*(at for at in job.pauses if at > now - 3600), now)
                self._schedule_wake(part, now + 3600)
            if row.checkpoint_cost_s is None:
                meter.lose(job.allocated_s)
                job.start_over()
            job.allocated_s = 0
        elif job.is_up:
            if not was_up:
                part.waiting -= 1
                meter.wait(row.project, job.size, -1)
                if self.min_runtime:
                    self._schedule_wake(part, now + self.min_runtime)
            self._serial += 1
            heappush(self.ends, (job.end(now), self._serial, job, job.version))

    def _schedule_wake(self, part: _Part, at: int) -> None:
        """Schedule a cycle for the end of a job's protection, which causes no other event.

        Rounded up to the minute if cycles are at least EVERY_S apart.
        """
        grid = _MINUTE if self.setting.every >= EVERY_S else max(1, self.setting.every)
        wake = -(-at // grid) * grid, self.parts.index(part)
        if wake not in self.scheduled_wakes:
            self.scheduled_wakes.add(wake)
            heappush(self.wakes, wake)


def _allowed_to_start(part: _Part, plan: Plan) -> set[str]:
    """Return the jobs that a strict queue lets start: none behind a waiting job."""
    started = {d.workload for d in plan.decisions if isinstance(d, Start)}
    allowed: set[str] = set()
    for job in part.head_jobs:
        if job.name not in started:
            break
        allowed.add(job.name)
    return allowed


def simulate(
    rows: Sequence[TraceRow],
    policy: PolicyName,
    setting: Setting,
    *,
    alone: Mapping[str, float] | None = None,
    timeline: AllocationTimeline | None = None,
    progress: Callable[[int], None] | None = None,
    on_plan: Callable[[int, Plan], None] | None = None,
) -> Run:
    """Replay a trace under a policy. Jobs of the same second are ordered by name.

    `alone` has each project's mean wait in a private cluster (`Run.mean_waits` of "static"); by
    default a run of its own computes it. `progress` gets the number of ended jobs, `on_plan` each
    plan and its time.

    Raises:
        InvalidRequest: a job's project is unknown, or the policy needs a private part for a
            project with unlimited quota.
    """
    rows = sorted(rows, key=lambda row: (row.submit_s, row.job))
    if policy == "static-whole":
        rows = [in_whole_gpus(row, setting.nodes) for row in rows]
    quotas = quotas_of(setting.projects)
    owners = dict.fromkeys(row.project for row in rows)
    unknown = next((owner for owner in owners if owner not in quotas), None)
    if unknown is not None:
        first = next(row.job for row in rows if row.project == unknown)
        raise InvalidRequest(
            f"Job {first} belongs to project {unknown}, which is not among the projects.",
            hint=f"Projects: {', '.join(sorted(quotas)) or 'none'}.",
        )
    if alone is None and policy != "static":
        alone = _mean_waits_alone(rows, setting, quotas)
    meter = _build_totals(rows, setting, quotas, timeline)
    parts = parts_of(policy, setting.nodes, setting.projects, owners, setting.policy)
    engine = _Engine(rows, parts, setting, meter, on_plan)
    engine.run(progress)
    unstarted = sum(len(part.jobs) for part in engine.parts)
    return Run(
        results=meter.results(meter.mean_waits() if alone is None else alone),
        never_ran=engine.refused + unstarted,
        mean_waits=meter.mean_waits(),
        longest_violation_s=meter.longest_violation_s,
        ended_s=engine.now,
    )


def _mean_waits_alone(
    rows: Sequence[TraceRow], setting: Setting, quotas: Mapping[str, int | None]
) -> Mapping[str, float]:
    """Return each project's mean wait in a private cluster, by a run of its own."""
    if any(quotas[row.project] is None for row in rows):
        return {}  # an unlimited quota has no private cluster to compare with
    return simulate(rows, "static", setting).mean_waits


def _build_totals(
    rows: Sequence[TraceRow],
    setting: Setting,
    quotas: Mapping[str, int | None],
    timeline: AllocationTimeline | None,
) -> SimulationTotals:
    """Return empty totals of the measured window."""
    first = rows[0].submit_s if rows else 0
    last = rows[-1].submit_s if rows else 0
    return SimulationTotals(
        quotas,
        capacity=sum(node.devices for node in setting.nodes) * WHOLE_GPU,
        since=first if setting.since is None else setting.since,
        until=last if setting.until is None else setting.until,
        timeline=timeline,
    )
