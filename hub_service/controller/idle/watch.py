"""Watcher of allocated but idle GPUs, following the project's rules.

A rule warns the owner, releases the GPUs, or stops the workload. For a release, the agent first
ends the programs on the devices; then the GPUs are free for other workloads.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from runai.hub_service.controller.idle.decision import (
    Do,
    IdleAction,
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
    KEEP_S,
    KEEPS,
    IdleRules,
    ProjectSpec,
    WorkloadId,
    WorkloadRecord,
)
from runai.hub_service.wire.agent_reports import AgentReport
from runai.hub_service.wire.errors import Conflict, NotFound

REPORTED_S = 15.0
"""Longest time between two reports that counts as reclaimed, in seconds."""


@dataclass(frozen=True, slots=True)
class IdleNow:
    """Idle state of a workload, and the next action."""

    idle_s: float
    level: Do | None
    next: Do | None = None
    """Action if it stays idle; None if there is none."""
    in_s: float | None = None
    keeps_left: int = KEEPS
    releasing: bool = False
    """True if its programs are being ended to release its GPUs."""
    releasable: bool = False
    """True if it can continue without GPUs. No pod can, and no session of one command."""

    @property
    def content(self) -> tuple[object, ...]:
        """Return all fields except the times, which change with each measurement."""
        return self.level, self.next, self.keeps_left, self.releasing, self.releasable


@dataclass(slots=True)
class _Watched:
    """One allocation of GPUs."""

    started: float | None
    known: Idleness
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
        self._watched: dict[WorkloadId, _Watched] = {}
        self._reported = 0.0

    # -- for the API ------------------------------------------------------------------------------

    def now(self, workload: WorkloadId) -> IdleNow | None:
        """Return the idle state of a workload. None if it is not idle or has no GPUs."""
        one = self._watched.get(workload)
        if one is None or (one.known.idle_s <= 0 and not one.releasing):
            return None
        coming = due_in(one.rules, one.known, releases=one.releases)
        return IdleNow(
            one.known.idle_s,
            one.known.level,
            coming[0] if coming else None,
            coming[1] if coming else None,
            KEEPS - one.known.keeps,
            releasing=bool(one.releasing),
            releasable=one.releases and not one.releasing,
        )

    def releasing(self, record: WorkloadRecord) -> bool:
        """Return True if programs of a workload may not use a device."""
        one = self._of(record)
        return record.released is not None or (one is not None and bool(one.releasing))

    def all_releasing(self, records: Iterable[WorkloadRecord]) -> set[WorkloadId]:
        """Return the workloads whose programs may not use a device."""
        released = {record.id for record in records if record.released is not None}
        return released.union(w for w, one in self._watched.items() if one.releasing)

    async def extend(self, record: WorkloadRecord, *, by: str) -> None:
        """Extend an idle workload's time by 30 minutes.

        Raises:
            Conflict: no action is due on it, or it was extended twice already.
        """
        one, workload = self._of(record), record.id
        if one is None or one.releasing or not due_in(one.rules, one.known, releases=one.releases):
            raise Conflict(
                f"{workload} is not about to lose its GPUs, so there is nothing to extend.",
                hint="`runai keep` works once its project's rule for idle GPUs warns of an action.",
                code="nothing_to_keep",
            )
        more = with_extension(one.known)
        if more is None:
            raise Conflict(
                f"{workload} was extended {KEEPS} times already, by {minutes(KEEP_S)} each.",
                hint="Use its GPU, and the count starts again.",
                code="kept_too_often",
            )
        one.known = more
        await self._report(workload, "idle", f"{by} keeps it for {minutes(KEEP_S)} more")

    async def release(self, record: WorkloadRecord, *, by: str) -> None:
        """Release a session's GPUs at the request of its owner.

        Raises:
            Conflict: it is not a running session with GPUs.
        """
        one = self._of(record)
        if not self._can_release(record) or not record.allocated or one is None:
            raise Conflict(
                f"{record.id} is no running session with GPUs ({record.state}).",
                hint="A job is stopped by suspending it.",
                code="not_releasable",
            )
        one.releasing = one.releasing or f"{by} gives its GPUs back"

    def _of(self, record: WorkloadRecord) -> _Watched | None:
        """Return the allocation of a workload, but none of an earlier workload of that name."""
        one = self._watched.get(record.id)
        is_its = one is not None and one.record is not None and one.record.uid == record.uid
        return one if is_its else None

    # -- reports of agents ------------------------------------------------------------------------

    async def observe(self, report: AgentReport) -> None:
        """Process the measurements of one node's agent."""
        holders = await self._cluster.holders()
        projects = {p.spec.name: p.spec for p in await self._cluster.projects()}
        self._count_reclaimed(report.at, holders.values())
        here = {a.workload for a in await self._cluster.allocations(report.node)}
        holding = {
            w: record
            for w in sorted(here)
            if (record := holders.get(w)) is not None and record.has_devices
        }
        self._watched = {
            workload: one
            for workload, one in self._watched.items()
            if workload in holders and holders[workload].has_devices
        }
        self._watched |= {
            w: self._watch_workload(w, record, projects.get(record.spec.project), report.at)
            for w, record in holding.items()
        }
        for workload, measured in _measured(report, holding).items():
            one = self._watched.get(workload)
            if one is None:
                continue  # its allocation ended during an await
            # The workload may have ended meanwhile; the rest of the report is still valid.
            with suppress(Conflict, NotFound):
                await self._process(holding[workload], one, measured)

    def _watch_workload(
        self, workload: WorkloadId, record: WorkloadRecord, project: ProjectSpec | None, at: float
    ) -> _Watched:
        one = self._watched.get(workload)
        if one is not None and one.record is record and one.project is project:
            return one  # unchanged, as for hundreds of workloads each second
        spec = project or ProjectSpec(record.spec.project)
        rules = spec.idle_session if record.spec.kind == "session" else spec.idle_job
        started = max((w.started for w in record.workers if w.started), default=None)
        if one is None or one.started != started or self._of(record) is not one:
            one = _Watched(started, Idleness(at), rules, self._can_release(record))
        one.rules, one.releases = rules, self._can_release(record)
        one.record, one.project = record, project
        return one

    def _can_release(self, record: WorkloadRecord) -> bool:
        is_open = record.spec.kind == "session" and record.spec.command is None
        return self._releases and is_open and record.workers[0].state == "running"

    async def _process(self, record: WorkloadRecord, one: _Watched, measured: Measurement) -> None:
        if one.releasing:
            if not measured.on_device:
                await self._cluster.release(record.id, why=one.releasing, uid=record.uid)
                self._write(record, "released", one.releasing)
                self._watched.pop(record.id, None)  # the watch may have dropped it during an await
            return
        one.known, action = evaluate(one.rules, one.known, measured, releases=one.releases)
        if action is not None and action.do is not Do.BADGE:
            await self._carry_out(record, one, action)

    async def _carry_out(self, record: WorkloadRecord, one: _Watched, action: IdleAction) -> None:
        facts = evidence(record, action, self._ledger.totals(record.id))
        coming = due_in(one.rules, one.known, releases=one.releases)
        match action.do:
            case Do.RELEASE:
                one.releasing = f"{facts}, so its GPUs go to others"
                await self._report(record.id, "idle", one.releasing, record)
            case Do.STOP:
                await self._report(record.id, "idle", f"{facts}, so it is stopped", record)
                by = f"the idle rule of project {record.spec.project}"
                if record.spec.kind == "session":
                    await self._cluster.delete(record.id, by=by, uid=record.uid)
                else:
                    await self._cluster.suspend(record.id, by=by, uid=record.uid)
            case Do.EXTEND:
                more = f"{facts}; it is at work on the processor, so it has the time once more"
                await self._report(record.id, "idle", more, record)
            case _:
                then = f"; in {minutes(coming[1])} it is {_TAKEN[coming[0]]}" if coming else ""
                await self._report(record.id, "idle", facts + then, record)

    async def _report(
        self, workload: WorkloadId, kind: str, text: str, record: WorkloadRecord | None = None
    ) -> None:
        await self._cluster.note(workload, text)
        self._write(record or await self._cluster.workload(workload), kind, text)

    def _write(self, record: WorkloadRecord, kind: str, text: str) -> None:
        """Write to the ledger, which outlives the workload, so that its owner can dispute it."""
        spec = record.spec
        self._ledger.event(record.id, kind, text, project=spec.project, user=spec.user)

    def _count_reclaimed(self, at: float, workloads: Iterable[WorkloadRecord]) -> None:
        seconds = at - self._reported
        self._reported = max(at, self._reported)
        if not 0 < seconds <= REPORTED_S:
            return
        for record in workloads:
            if record.released is not None and not record.state.finished:
                gpus = record.spec.gpus * record.spec.workers / 1000
                self._ledger.reclaim(at, record.spec.project, seconds * gpus)


_TAKEN = {Do.RELEASE: "left without its GPUs", Do.STOP: "stopped"}


def _measured(
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
