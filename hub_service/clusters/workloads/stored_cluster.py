"""Cluster with its state in rows of a store, and its workers run by an executor.

Every change is one synchronous read-decide-write of the store's memory. So changes never
interleave, and a cancelled call leaves nothing half done. Users are answered when the change is
durable (`Store.stored`).
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Container, Mapping, Sequence
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from typing import Generic, TypeVar

from runai.hub_service.clusters.states import (
    code_changes,
    lifecycle,
    membership,
    outcomes,
    user_actions,
    worker_bounds,
)
from runai.hub_service.clusters.states.device_faults import record_faults, with_faults
from runai.hub_service.clusters.states.identity import new_uid, refuse_other
from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.clusters.states.transition import ExitStatus, Store, Transition
from runai.hub_service.clusters.workloads import snapshot_builder
from runai.hub_service.clusters.workloads.capacity_check import slots
from runai.hub_service.clusters.workloads.change_signal import ChangeSignal
from runai.hub_service.clusters.workloads.executor import Executor
from runai.hub_service.clusters.workloads.plan_transitions import PlanTransitions
from runai.hub_service.clusters.workloads.queue_status import store_waits
from runai.hub_service.clusters.workloads.stored_projects import StoredProjects
from runai.hub_service.clusters.workloads.workload_index import WorkloadIndex
from runai.hub_service.model import arrays
from runai.hub_service.model.changes import WorkloadChanges
from runai.hub_service.model.cluster import LogChunk, NodeReport, ProjectChange, Refused
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import (
    ACTIVE,
    Allocation,
    Code,
    ElasticRules,
    HistoryEvent,
    Process,
    ProjectRecord,
    ProjectSpec,
    WorkerEnvironment,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.scheduler.model.snapshot import Plan, Snapshot, Workload
from runai.hub_service.wire.elastic_messages import WorkerStatus
from runai.hub_service.wire.errors import Conflict, NotFound, RunaiError, Unavailable

ExecutorT = TypeVar("ExecutorT", bound=Executor)


class StoredCluster(Generic[ExecutorT]):
    """Workloads and projects of a store; carries out plans on their rows."""

    def __init__(
        self,
        store: Store,
        nodes: Mapping[str, Sequence[Device]],
        executor_of: Callable[["StoredCluster[ExecutorT]"], ExecutorT],
        *,
        capacities: Mapping[str, NodeCapacity] | None = None,
        elastic: ElasticRules | None = None,
        retention: RetentionPolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Load the store's rows, and make the executor that reports to this cluster."""
        self._elastic = elastic or ElasticRules()
        self._store = store
        self.nodes = {name: tuple(devices) for name, devices in nodes.items()}
        self._capacities = dict(capacities or {})
        self._clock = clock
        self.index = WorkloadIndex(
            store.rows(),
            retention or RetentionPolicy(),
            build_element=lambda spec, now: _new_row(self._submission(spec, now, "")),
            slots=lambda spec: slots(spec, self.nodes, self._capacities),
        )
        self._change_signal = ChangeSignal()
        self._projects = StoredProjects(
            store,
            self.index,
            clock=clock,
            commit=partial(self.commit, quietly=True),
            announce=self._change_signal.wake,
        )
        self._unsaved_pauses = Counter[str]()
        self.executor = executor_of(self)

    async def run(self) -> None:
        """Run the executor until cancelled."""
        await self.executor.run()

    # -- the cycle -------------------------------------------------------------------------------

    async def changed(self) -> None:
        """Return when anything that a snapshot shows has changed since the last `observe`."""
        await self._change_signal.changed()

    async def observe(self) -> Snapshot:
        """Return the scheduler's next snapshot."""
        self._change_signal.clear_snapshot_change()
        now = self._clock()
        workloads = self.index.for_core(now, self._elastic)
        projects = self._projects.records()
        return snapshot_builder.snapshot(now, self.nodes, projects, workloads, self._capacities)

    async def apply(self, plan: Plan) -> Sequence[Refused]:
        """Carry out the decisions in the plan's order; a refused one costs only itself."""
        free_port = self.executor.free_port
        plan_transitions = PlanTransitions(
            self.index, self.nodes, self._capacities, now=self._clock(), free_port=free_port
        )
        plan_transitions.convert(plan)
        self.commit(plan_transitions.transitions, quietly=True)
        await store_waits(
            plan_transitions.waits,
            self.index,
            self._store,
            clock=self._clock,
            announce=partial(self._change_signal.wake, is_snapshot_changed=False),
        )
        return plan_transitions.refused

    # -- workloads -------------------------------------------------------------------------------

    async def submit(self, specs: Sequence[WorkloadSpec]) -> Sequence[WorkloadRecord]:
        """Store new workloads, all or none, if they can be run now."""
        for spec in specs:
            await self.executor.check(spec)
        if specs and (existing := self.index.submitted_under(specs[0].user, specs[0].key)):
            return existing
        self._refuse_used_names(specs)
        now = self._clock()
        self.commit({spec.id: self._submission(spec, now, new_uid(now)) for spec in specs})
        records = [self.index[spec.id] for spec in specs]
        try:
            await self._store.stored([record.id for record in records])
        except RunaiError:  # nobody was told that there is such a workload
            row_ids = (row_id for record in records for row_id in self.index.row_ids(record.id))
            self.commit({row_id: Transition(None) for row_id in row_ids})
            raise
        return records

    def _refuse_used_names(self, specs: Sequence[WorkloadSpec]) -> None:
        """Raise Conflict if a name is taken by a stored workload, or twice in `specs`."""
        names: set[WorkloadId] = set()
        for spec in specs:
            for workload in arrays.names_of(spec):
                taken = self.index.record(workload)
                if taken is not None or workload in names:
                    raise user_actions.refusal_of_used_name(workload, taken.state if taken else "")
                names.add(workload)

    def _submission(self, spec: WorkloadSpec, now: float, uid: str) -> Transition:
        """Return the transition that adds a new workload or array of this spec."""
        own, logs = self.executor.directories(spec, now)
        return user_actions.submitted(
            spec,
            now=now,
            checkpoint_dir=own,
            log_dir=logs,
            uid=uid,
            account_uid=self.executor.account_uid(spec.user),
        )

    async def submitted(self, user: str, key: str) -> Sequence[WorkloadRecord]:
        """Return the workloads that a user has submitted under a key."""
        return self.index.submitted_under(user, key)

    async def unfinished_jobs(self, user: str) -> int:
        """Return the number of a user's unfinished jobs."""
        return self.index.unfinished_jobs(user)

    async def names(self) -> Container[WorkloadId]:
        """Return the names in use."""
        return self.index.names

    async def workloads(self) -> Sequence[WorkloadRecord]:
        """Return all workloads, oldest first."""
        return self.index.records()

    async def changes(self, since: int | None) -> WorkloadChanges:
        """Return the changes of workloads since a version; None: all workloads."""
        return self.index.changes(since)

    async def workload(self, workload: WorkloadId) -> WorkloadRecord:
        """Return one workload, an element of an array, or a whole array."""
        record = self.index.record(workload)
        return self._row(workload) if record is None else record

    async def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return a workload's history, oldest first."""
        await self.workload(workload)
        array_element = self.index.array_of_element(workload)
        return self._store.history(workload if array_element is None else array_element[0].id)

    async def suspend(self, workload: WorkloadId, *, by: str, uid: str = "") -> WorkloadRecord:
        """Take a job out of the queue and stop it if it runs."""
        now = self._clock()
        rows = self._unfinished_rows(self._checked_id(workload, uid))
        transitions = {row.id: user_actions.suspended(row, by=by, now=now) for row in rows}
        self.commit(transitions, urgent=True)
        await self._store.stored(transitions)
        return await self.workload(workload)

    async def resume(self, workload: WorkloadId, *, by: str, uid: str = "") -> WorkloadRecord:
        """Put a suspended job back into the queue at its original place.

        Raises:
            Forbidden: its user's account is another person's now.
        """
        for row in self._unfinished_rows(self._checked_id(workload, uid))[:1]:
            with suppress(NotFound, Unavailable):  # it waits in the queue
                await self.executor.check(row.spec)
        rows = self._unfinished_rows(self._checked_id(workload, uid))
        self.commit({row.id: user_actions.resumed(row, by=by) for row in rows})
        await self._store.stored([row.id for row in rows])
        return await self.workload(workload)

    def _unfinished_rows(self, workload: WorkloadId) -> list[WorkloadRecord]:
        """Return the rows that a name stands for; of an array only elements that have not ended."""
        rows = [self._row(row_id) for row_id in self.index.row_ids(workload)]
        unfinished = [row for row in rows if not row.state.finished]
        return rows if len(rows) == 1 else unfinished

    async def scale(
        self,
        workload: WorkloadId,
        *,
        workers: int | None,
        min_workers: int | None,
        by: str,
        uid: str = "",
    ) -> WorkloadRecord:
        """Set the bounds of an elastic job's workers; None: unchanged."""
        row, now = self._single_row(self._checked_id(workload, uid)), self._clock()
        scaled = worker_bounds.scaled(row, workers=workers, min_workers=min_workers, by=by, now=now)
        self.commit({workload: scaled})
        await self._store.stored([workload])
        return self._row(workload)

    async def delete(self, workload: WorkloadId, *, by: str, uid: str = "") -> None:
        """Stop a workload if it runs, and delete it when its processes have gone."""
        now, row_ids = self._clock(), self.index.row_ids(self._checked_id(workload, uid))
        transitions = {p: user_actions.deleted(self._row(p), by=by, now=now) for p in row_ids}
        self.commit(transitions, urgent=True)
        await self._store.stored(transitions)

    async def attach(
        self, workload: WorkloadId, process: Process, *, uid: str = ""
    ) -> WorkloadRecord:
        """Record the process of a session that its spawner has started."""
        row = self._single_row(self._checked_id(workload, uid))
        process = self.executor.recognised(row, process)
        user_actions.refuse_unless_attachable(row, process)
        self.commit({workload: lifecycle.attached(row, process, now=self._clock())})
        self.executor.adopt(row, process)
        await self._store.stored([workload])
        return self._row(workload)

    async def release(self, workload: WorkloadId, *, why: str, uid: str = "") -> WorkloadRecord:
        """Release a running session's GPUs; it goes on without them."""
        row = self._single_row(self._checked_id(workload, uid))
        self.commit({workload: user_actions.released(row, why=why, now=self._clock())})
        await self._store.stored([workload])
        return self._row(workload)

    async def regain(self, workload: WorkloadId, *, by: str, uid: str = "") -> WorkloadRecord:
        """Queue a released session for its GPUs; it goes on meanwhile."""
        row = self._single_row(self._checked_id(workload, uid))
        self.commit({workload: user_actions.regained(row, by=by)})
        await self._store.stored([workload])
        return self._row(workload)

    async def wait(self, workload: WorkloadId, seen: WorkloadRecord) -> WorkloadRecord:
        """Return the workload as soon as it differs from `seen`."""
        while (record := await self.workload(workload)) == seen:
            await self._change_signal.next_change()
        return record

    async def environment(
        self, workload: WorkloadId, worker: int = 0, *, uid: str = ""
    ) -> WorkerEnvironment:
        """Return the environment with which a spawner starts a session on its devices."""
        row = self._single_row(self._checked_id(workload, uid))
        if not 0 <= worker < len(row.workers):
            raise NotFound(
                f"{workload} has no worker {worker}.",
                hint=f"Its workers are numbered from 0 to {len(row.workers) - 1}.",
            )
        if (worker_record := row.workers[worker]).state not in ACTIVE:
            raise Conflict(
                f"{workload} holds no GPUs now ({row.state}).",
                hint="Wait until it is started.",
                code="no_allocation",
            )
        devices = self.nodes.get(worker_record.node, ())
        variables = self.executor.variables(row, worker_record, devices)
        return WorkerEnvironment(variables, row.spec.workdir, row.spec.umask)

    async def logs(
        self,
        workload: WorkloadId,
        *,
        worker: int | None,
        tail: int | None,
        follow: bool,
        parts: bool = False,
        uid: str = "",
    ) -> AsyncIterator[LogChunk]:
        """Yield the workers' output of all attempts; `follow` continues until the end."""
        record = self._single_row(self._checked_id(workload, uid))
        chunks = self.executor.logs(record, worker=worker, tail=tail, follow=follow, parts=parts)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def progress(
        self, only: Collection[WorkloadId] | None = None
    ) -> Mapping[WorkloadId, Progress]:
        """Return the last progress that each job reported; `only` limits the jobs."""
        return await self.executor.progress(only)

    def unsaved_pauses(self) -> Mapping[str, int]:
        """Return the pauses since the service's start that left no new checkpoint, by project."""
        return self._unsaved_pauses

    # -- nodes and projects ----------------------------------------------------------------------

    async def holders(self) -> Mapping[WorkloadId, WorkloadRecord]:
        """Return the workloads that hold devices or have released them."""
        return self.index.holders()

    async def devices(self) -> Mapping[str, Sequence[Device]]:
        """Return the devices of each node."""
        return self.nodes

    def set_nodes(
        self, nodes: Mapping[str, Sequence[Device]], capacities: Mapping[str, NodeCapacity]
    ) -> None:
        """Replace the nodes by those that there are now."""
        self.nodes = {name: tuple(devices) for name, devices in nodes.items()}
        self._capacities = dict(capacities)
        self._change_signal.wake()

    async def allocations(self, node: str) -> Sequence[Allocation]:
        """Return the workers that run or stop on a node, for its agent."""
        devices = self.nodes.get(node, ())
        return self.executor.allocations(node, devices, self.index.active_rows())

    async def note(self, workload: WorkloadId, text: str) -> None:
        """Write a warning into a workload's history."""
        self.commit({workload: Transition(self._row(workload), (("warning", text),))}, quietly=True)

    async def note_faults(self, node: str, faults: Mapping[str, str]) -> None:
        """Take devices out of use for these reasons, by UUID, and back where it is ""."""
        self.set_faults(node, self.executor.faults(faults))

    def set_faults(self, node: str, faults: Mapping[str, str]) -> None:
        """Set the faults of devices by UUID; "" clears one."""
        before = self.nodes.get(node, ())
        after = with_faults(before, faults)
        if after != before:
            self.nodes = {**self.nodes, node: after}
            self.commit(record_faults(node, before, after, self.index.values()))
            self._change_signal.wake()

    async def note_holders(self, node: str, report: NodeReport) -> None:
        """Do nothing: this cluster grants the devices itself."""

    async def projects(self) -> Sequence[ProjectRecord]:
        """Return all projects, oldest first."""
        return self._projects.records()

    async def put_project(self, spec: ProjectSpec) -> ProjectRecord:
        """Create or change a project; the next cycle uses it."""
        return await self.change_project(spec.name, lambda _known: spec)

    async def change_project(self, name: str, change: ProjectChange) -> ProjectRecord:
        """Replace a project by `change` of it, with no await between read and write."""
        return await self._projects.change(name, change)

    async def delete_project(self, name: str) -> None:
        """Delete a project and its finished workloads, as if these had aged."""
        await self._projects.delete(name)

    # -- the executor's reads and reports --------------------------------------------------------

    def row(self, workload: WorkloadId) -> WorkloadRecord | None:
        """Return a workload's desired state."""
        return self.index.get(workload)

    def current_record(self, workload: WorkloadId, uid: str) -> WorkloadRecord | None:
        """Return the record of a workload; None if it is gone, also if another has its name."""
        record = self.index.record(workload)
        return record if record is not None and record.uid == uid else None

    def report_running(self, workload: WorkloadId, index: int, process: Process) -> None:
        """Record a worker's running process."""
        row = self._row(workload)
        self.commit({workload: lifecycle.running(row, index, process, now=self._clock())})

    def report_exit(self, workload: WorkloadId, index: int, exit_status: ExitStatus) -> None:
        """Record a worker's exit, after its last process has gone."""
        row = self._row(workload)
        transition = lifecycle.exited(row, index, exit_status, now=self._clock())
        self.commit({workload: transition}, urgent=row.intent != "run")

    def report_checkpoint(
        self, workload: WorkloadId, stops: tuple[tuple[int, int], ...], *, is_new: bool | None
    ) -> None:
        """Record whether a pause, known by its stops, left a new checkpoint; None: unknown."""
        if (row := self.index.row(workload)) is None:
            return
        transition = outcomes.examined(row, stops, is_new=is_new)
        self.commit({workload: transition}, quietly=True)
        if transition.events:
            self._unsaved_pauses[row.spec.project] += 1

    def report_code(self, workload: WorkloadId, attempt: int, code: Code | None) -> None:
        """Record the code with which an attempt started; None: unknown."""
        if (row := self.index.row(workload)) is not None:
            transition = code_changes.noted(row, attempt, code)
            self.commit({workload: transition}, quietly=True, soon=True)

    def report_statuses(self, workload: WorkloadId, statuses: Mapping[str, WorkerStatus]) -> None:
        """Record the statuses of an elastic job's workers, by their names."""
        self.commit(
            {workload: membership.apply_statuses(self._row(workload), statuses)}, quietly=True
        )

    def apply_due_transitions(self) -> float | None:
        """Make all transitions due by now; return when the next one is due."""
        now = self._clock()
        transitions = {row.id: lifecycle.due(row, now=now) for row in self.index.timed()}
        self.commit({w: due for w, due in transitions.items() if due is not None})
        for workload in self.index.expired(now):
            self.commit({workload: Transition(None, aged=True)}, quietly=True)
        return self.index.next_due()

    # -- storing ---------------------------------------------------------------------------------

    def _row(self, workload: WorkloadId) -> WorkloadRecord:
        row = self.index.row(workload)
        if row is None:
            raise NotFound(
                f"There is no workload {workload}.", hint="runai list names those there are."
            )
        return row

    def _checked_id(self, workload: WorkloadId, uid: str) -> WorkloadId:
        """Return the id of a workload, if it has this uid or the uid is "".

        Raises:
            Conflict: it is another workload of that name.
        """
        if uid and (record := self.index.record(workload)) is not None:
            refuse_other(record, uid)
        return workload

    def _single_row(self, workload: WorkloadId) -> WorkloadRecord:
        """Return the row of a workload that is no whole array."""
        if (record := self.index.record(workload)) is not None and record.spec.is_array:
            raise user_actions.refusal_of_whole_array(record)
        return self._row(workload)

    def commit(
        self,
        transitions: Mapping[WorkloadId, Transition],
        *,
        quietly: bool = False,
        soon: bool = False,
        urgent: bool = False,
    ) -> None:
        """Store transitions, then show the new rows to readers, then act on them.

        `soon`: they are stored with the next write. `urgent`: on a full disk too, if possible, as
        stops that users request. `quietly`: they wake the controller only if they alter its
        snapshot, as a plan's; other changes always wake it, because users wait for the result.
        """
        now = self._clock()
        queue_updates = [t.row for t in transitions.values() if t.only_queue_status]
        transitions = {
            w: self._with_new_target(t, now)
            for w, t in transitions.items()
            if not t.only_queue_status
        }
        for row in queue_updates:
            assert row is not None
            self.index.update_queue_status(row)
        changed = {w: t for w, t in transitions.items() if t.row != self.index.row(w) or t.events}
        changed |= self.index.array_transitions(changed)
        if not changed:
            if queue_updates:
                self._change_signal.wake(is_snapshot_changed=False)
            return
        deleted = [self.index[w] for w, t in changed.items() if t.row is None and w in self.index]
        events = self._events_of(changed, now)
        rows = [t.row for t in changed.values() if t.row is not None]
        with ExitStack() as exit_stack:
            for row in deleted:
                exit_stack.enter_context(self.executor.forgetting(row, aged=changed[row.id].aged))
            deleted_ids = [row.id for row in deleted]
            self._store.save(rows, deleted=deleted_ids, events=events, soon=soon, urgent=urgent)
        is_snapshot_changed = not quietly
        for workload, transition in changed.items():
            before, after = self.index.row(workload), transition.row
            if after is None:
                self.index.pop(workload, None)  # an element may have no row
            else:
                self.index[workload] = after
            if not is_snapshot_changed:
                is_snapshot_changed = self._for_core(before, now) != self._for_core(after, now)
        self._change_signal.wake(is_snapshot_changed=is_snapshot_changed)
        for row in rows:
            self.executor.act(row)

    def _events_of(
        self, transitions: Mapping[WorkloadId, Transition], now: float
    ) -> list[tuple[WorkloadId, HistoryEvent]]:
        """Return the transitions' events; an element's first ones are of its submission."""
        events: list[tuple[WorkloadId, HistoryEvent]] = []
        for workload, transition in transitions.items():
            if transition.row is None:
                continue
            if (array_element := self.index.array_of_element(workload)) is not None:
                at = array_element[0].submitted
                lines = self._submission(transition.row.spec, at, "").events
                events += [(workload, HistoryEvent(at, *line)) for line in lines]
            events += [(workload, HistoryEvent(now, *line)) for line in transition.events]
        return events

    def _with_new_target(self, transition: Transition, now: float) -> Transition:
        """Update the target members of an elastic job after a change of its workers."""
        if transition.row is None:
            return transition
        row = worker_bounds.trimmed(transition.row)
        after = membership.update_target(
            row, now, lambda _: f"127.0.0.1:{self.executor.free_port()}"
        )
        return Transition(after.row, (*transition.events, *after.events))

    def _store_address(self, _first_rank: str) -> str:
        return f"127.0.0.1:{self.executor.free_port()}"

    def _for_core(self, row: WorkloadRecord | None, now: float) -> Workload | None:
        """Return a row's part of the snapshot, if it has one."""
        return None if row is None else snapshot_builder.workload_for_core(row, now, self._elastic)


def _new_row(transition: Transition) -> WorkloadRecord:
    assert transition.row is not None
    return transition.row
