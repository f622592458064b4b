"""Watcher of allocated but idle GPUs, following the project's rules.

A rule warns the owner, releases the GPUs, or stops the workload. For a release, the agent first
ends the programs on the devices; then the GPUs are free for other workloads.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from runai.hub_service.controller.idle.idleness import (
    IdleAction,
    IdleActionKind,
    Idleness,
    Measurement,
    due_in,
    evaluate,
    evidence,
    minutes,
    with_extension,
)
from runai.hub_service.ledger import Ledger
from runai.hub_service.model.cluster import Cluster
from runai.hub_service.model.records import (
    EXTENSION_S,
    MAX_EXTENSIONS,
    IdleRules,
    ProjectSpec,
    WorkloadId,
    WorkloadRecord,
)
from runai.hub_service.wire.errors import Conflict, NotFound
from runai.hub_service.wire.reports import AgentReport

MAX_REPORT_INTERVAL_S = 15.0
"""Longest time between two reports that counts as reclaimed, in seconds."""


@dataclass(frozen=True, slots=True)
class IdleNow:
    """Idle state of a workload, and the next action."""

    idle_s: float
    level: IdleActionKind | None
    next: IdleActionKind | None = None
    """Action if it stays idle; None if there is none."""
    in_s: float | None = None
    extensions_left: int = MAX_EXTENSIONS
    releasing: bool = False
    """True if its programs are being ended to release its GPUs."""
    releasable: bool = False
    """True if it can continue without GPUs. No pod can, and no session of one command."""

    @property
    def content(self) -> tuple[object, ...]:
        """Return all fields except the times, which change with each measurement."""
        return self.level, self.next, self.extensions_left, self.releasing, self.releasable


@dataclass(slots=True)
class _WatchedWorkload:
    """One allocation of GPUs."""

    started: float | None
    idleness: Idleness
    rules: IdleRules
    releases: bool
    record: WorkloadRecord | None = None
    """Record, with its project, from which the other fields are derived."""
    project: ProjectSpec | None = None
    releasing: str = ""
    """Reason of the current release; "" if there is none."""


class IdleWatch:
    """Idle state of every workload with GPUs."""

    def __init__(self, cluster: Cluster, ledger: Ledger, *, releases: bool = True) -> None:
        """Watch a cluster; `releases` is True if its sessions can continue without GPUs."""
        self._cluster = cluster
        self._releases = releases
        self._ledger = ledger
        self._watched: dict[WorkloadId, _WatchedWorkload] = {}
        self._reported_at = 0.0

    # -- for the API ------------------------------------------------------------------------------

    def now(self, workload: WorkloadId) -> IdleNow | None:
        """Return the idle state of a workload. None if it is not idle or has no GPUs."""
        watched = self._watched.get(workload)
        if watched is None or (watched.idleness.idle_s <= 0 and not watched.releasing):
            return None
        next_action = due_in(watched.rules, watched.idleness, releases=watched.releases)
        return IdleNow(
            watched.idleness.idle_s,
            watched.idleness.level,
            next_action[0] if next_action else None,
            next_action[1] if next_action else None,
            MAX_EXTENSIONS - watched.idleness.extensions,
            releasing=bool(watched.releasing),
            releasable=watched.releases and not watched.releasing,
        )

    def releasing(self, record: WorkloadRecord) -> bool:
        """Return True if programs of a workload may not use a device, or soon may not."""
        watched = self._watched_of(record)
        return record.released is not None or (watched is not None and bool(watched.releasing))

    def all_releasing(self, records: Iterable[WorkloadRecord]) -> set[WorkloadId]:
        """Return the workloads whose programs may not use a device."""
        released = {record.id for record in records if record.released is not None}
        return released.union(w for w, watched in self._watched.items() if watched.releasing)

    async def extend(self, record: WorkloadRecord, *, by: str) -> None:
        """Extend an idle workload's time by 30 minutes.

        Raises:
            Conflict: no action is due on it, or it was extended twice already.
        """
        watched, workload = self._watched_of(record), record.id
        due = watched and due_in(watched.rules, watched.idleness, releases=watched.releases)
        if watched is None or watched.releasing or not due:
            raise Conflict(
                f"{workload} is not about to lose its GPUs, so there is nothing to extend.",
                hint="`runai keep` works once its project's rule for idle GPUs warns of an action.",
                code="nothing_to_keep",
            )
        extended = with_extension(watched.idleness)
        if extended is None:
            raise Conflict(
                f"{workload} was extended {MAX_EXTENSIONS} times already, by"
                f" {minutes(EXTENSION_S)} each.",
                hint="Use its GPU, and the count starts again.",
                code="kept_too_often",
            )
        watched.idleness = extended
        await self._report(workload, "idle", f"{by} keeps it for {minutes(EXTENSION_S)} more")

    async def release(self, record: WorkloadRecord, *, by: str) -> None:
        """Release a session's GPUs at the request of its owner.

        Raises:
            Conflict: it is not a running session with GPUs.
        """
        watched = self._watched_of(record)
        if not self._can_release(record) or not record.allocated or watched is None:
            raise Conflict(
                f"{record.id} is no running session with GPUs ({record.state}).",
                hint="A job is stopped by suspending it.",
                code="not_releasable",
            )
        watched.releasing = watched.releasing or f"{by} gives its GPUs back"

    def _watched_of(self, record: WorkloadRecord) -> _WatchedWorkload | None:
        """Return the allocation of a workload, but none of an earlier workload of that name."""
        watched = self._watched.get(record.id)
        its_record = None if watched is None else watched.record
        return watched if its_record is not None and its_record.uid == record.uid else None

    # -- reports of agents ------------------------------------------------------------------------

    async def observe(self, report: AgentReport) -> None:
        """Process the measurements of one node's agent."""
        holders = await self._cluster.holders()
        projects = {p.spec.name: p.spec for p in await self._cluster.projects()}
        self._record_reclaimed(report.at, holders.values())
        workloads_here = {a.workload for a in await self._cluster.allocations(report.node)}
        holding = {
            w: record
            for w in sorted(workloads_here)
            if (record := holders.get(w)) is not None and record.has_devices
        }
        self._watched = {
            workload: watched
            for workload, watched in self._watched.items()
            if workload in holders and holders[workload].has_devices
        }
        self._watched |= {
            w: self._update_watched(w, record, projects.get(record.spec.project), report.at)
            for w, record in holding.items()
        }
        for workload, measurement in _measurements(report, holding).items():
            watched = self._watched.get(workload)
            if watched is None:
                continue  # its allocation ended during an await
            # The workload may have ended meanwhile; the rest of the report is still valid.
            with suppress(Conflict, NotFound):
                await self._apply_measurement(holding[workload], watched, measurement)

    def _update_watched(
        self, workload: WorkloadId, record: WorkloadRecord, project: ProjectSpec | None, at: float
    ) -> _WatchedWorkload:
        """Return the state of a workload's allocation with its current rules; new if it is new."""
        watched = self._watched.get(workload)
        if watched is not None and watched.record is record and watched.project is project:
            return watched  # unchanged, as for hundreds of workloads each second
        spec = project or ProjectSpec(record.spec.project)
        rules = spec.idle_session if record.spec.kind == "session" else spec.idle_job
        started = max((w.started for w in record.workers if w.started), default=None)
        if watched is None or watched.started != started or self._watched_of(record) is not watched:
            watched = _WatchedWorkload(started, Idleness(at), rules, self._can_release(record))
        watched.rules, watched.releases = rules, self._can_release(record)
        watched.record, watched.project = record, project
        return watched

    def _can_release(self, record: WorkloadRecord) -> bool:
        """Return True if a running workload can continue without its GPUs."""
        is_open = record.spec.kind == "session" and record.spec.command is None
        return self._releases and is_open and record.workers[0].state == "running"

    async def _apply_measurement(
        self, record: WorkloadRecord, watched: _WatchedWorkload, measurement: Measurement
    ) -> None:
        """Finish a release once no program is on the devices; else apply the rules."""
        if watched.releasing:
            if not measurement.on_device:
                await self._cluster.release(record.id, why=watched.releasing, uid=record.uid)
                self._write(record, "released", watched.releasing)
                self._watched.pop(record.id, None)  # the watch may have dropped it during an await
            return
        rules, releases = watched.rules, watched.releases
        watched.idleness, action = evaluate(rules, watched.idleness, measurement, releases=releases)
        if action is not None and action.kind is not IdleActionKind.BADGE:
            await self._carry_out(record, watched, action)

    async def _carry_out(
        self, record: WorkloadRecord, watched: _WatchedWorkload, action: IdleAction
    ) -> None:
        """Release, stop, extend or only warn, with the measured times in the history."""
        facts = evidence(record, action, self._ledger.totals(record.id))
        next_action = due_in(watched.rules, watched.idleness, releases=watched.releases)
        match action.kind:
            case IdleActionKind.RELEASE:
                watched.releasing = f"{facts}, so its GPUs go to others"
                await self._report(record.id, "idle", watched.releasing, record)
            case IdleActionKind.STOP:
                await self._report(record.id, "idle", f"{facts}, so it is stopped", record)
                by = f"the idle rule of project {record.spec.project}"
                if record.spec.kind == "session":
                    await self._cluster.delete(record.id, by=by, uid=record.uid)
                else:
                    await self._cluster.suspend(record.id, by=by, uid=record.uid)
            case IdleActionKind.EXTEND:
                more = f"{facts}; it is at work on the processor, so it has the time once more"
                await self._report(record.id, "idle", more, record)
            case _:
                if next_action:
                    facts += f"; in {minutes(next_action[1])} it is {_ACTION_TEXTS[next_action[0]]}"
                await self._report(record.id, "idle", facts, record)

    async def _report(
        self, workload: WorkloadId, kind: str, text: str, record: WorkloadRecord | None = None
    ) -> None:
        await self._cluster.note(workload, text)
        self._write(record or await self._cluster.workload(workload), kind, text)

    def _write(self, record: WorkloadRecord, kind: str, text: str) -> None:
        """Write to the ledger, which outlives the workload, so that its owner can dispute it."""
        spec = record.spec
        self._ledger.event(record.id, kind, text, project=spec.project, user=spec.user)

    def _record_reclaimed(self, at: float, workloads: Iterable[WorkloadRecord]) -> None:
        """Add the GPU-seconds of released workloads since the last report to the ledger."""
        seconds = at - self._reported_at
        self._reported_at = max(at, self._reported_at)
        if not 0 < seconds <= MAX_REPORT_INTERVAL_S:
            return
        for record in workloads:
            if record.released is not None and not record.state.finished:
                gpus = record.spec.gpus * record.spec.workers / 1000
                self._ledger.reclaim(at, record.spec.project, seconds * gpus)


_ACTION_TEXTS = {IdleActionKind.RELEASE: "left without its GPUs", IdleActionKind.STOP: "stopped"}


def _measurements(
    report: AgentReport, records: Mapping[WorkloadId, WorkloadRecord]
) -> Mapping[WorkloadId, Measurement]:
    """Return the measurements of each workload with devices on the report's node."""
    servers = {
        w.process.pid
        for r in records.values()
        if r.spec.kind == "session" and r.spec.command is None
        for w in r.workers
        if w.process and w.node == report.node
    }
    on_device = {p.workload for p in report.processes if p.pid not in servers}
    sampled = {sample.workload for sample in report.samples}
    busy: dict[WorkloadId, float] = {}
    cpu: dict[WorkloadId, float] = {}
    for sample in report.samples:
        workload = sample.workload
        if sample.utilization is not None:
            busy[workload] = max(busy.get(workload, 0.0), sample.utilization)
        if sample.cpu is not None:
            cpu[workload] = max(cpu.get(workload, 0.0), sample.cpu)
    return {
        workload: Measurement(
            report.at,
            report.interval,
            busy.get(workload),
            workload in on_device,
            cpu.get(workload),
        )
        for workload in records
        if workload in sampled
    }
