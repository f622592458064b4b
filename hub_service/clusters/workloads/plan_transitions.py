"""Conversion of a plan to transitions of rows, with refusals of outdated decisions.

A decision that was carried out already does nothing. Pure, except for `free_port`, which picks the
port of a gang.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never, cast

from runai.hub_service.clusters.states import lifecycle, user_actions
from runai.hub_service.clusters.states.resize import incoming_devices, without_resize
from runai.hub_service.clusters.states.transition import Transition
from runai.hub_service.clusters.workloads.capacity_check import (
    book_unless_refused,
    refusal_of_gang,
    sum_capacity_use,
)
from runai.hub_service.clusters.workloads.workload_index import WorkloadIndex
from runai.hub_service.model.cluster import Refused
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.records import ACTIVE, Grant, StateReason, WorkloadId, WorkloadRecord
from runai.hub_service.scheduler.model.snapshot import (
    Decision,
    Move,
    Plan,
    Reserve,
    Resize,
    Start,
    Stop,
    Unreserve,
    Wait,
)


class PlanTransitions:
    """A plan's transition for each row; the rows themselves stay unchanged."""

    def __init__(
        self,
        workload_index: WorkloadIndex,
        nodes: Mapping[str, Sequence[Device]],
        capacities: Mapping[str, NodeCapacity],
        *,
        now: float,
        free_port: Callable[[], int],
    ) -> None:
        """Start with the current rows and devices."""
        self.transitions: dict[WorkloadId, Transition] = {}
        self.refused: list[Refused] = []
        self.waits: Sequence[Wait] = ()
        """The waits at the plan's end."""
        self._workload_index = workload_index
        self._nodes = nodes
        self._now = now
        self._free_port = free_port
        self._capacity_use = sum_capacity_use(workload_index.active_rows(), nodes, capacities)

    def convert(self, plan: Plan) -> None:
        """Convert the decisions in order; a workload's starts together, and its stops together.

        The waits at the plan's end are left to `queue_status`: thousands, nearly all known already.

        A move is a stop: the worker returns to its old place in the queue (R9), and the room made
        for it elsewhere is still there when it has gone.
        """
        self.waits = _trailing_waits(plan.decisions)
        actions = plan.decisions[: len(plan.decisions) - len(self.waits)]
        for group in _grouped([_stop_of(d) if isinstance(d, Move) else d for d in actions]):
            first = group[0]
            row = self._row(first.workload)
            if row is None:
                self._refuse(first.workload, "", f"there is no workload {first.workload}")
                continue
            match first:
                case Start():
                    self._start(row, [d for d in group if isinstance(d, Start)])
                case Stop():
                    self._stop(row, [d for d in group if isinstance(d, Stop)])
                case Reserve():
                    self._reserve(row, first)
                case Unreserve():
                    index = _index(row, first.worker)
                    if index >= 0 and row.workers[index].state == "reserved":
                        self._merge(row, user_actions.unreserved(row, index))
                case Wait():
                    self._wait(row, first)
                case Resize():
                    self._resize(row, first)
                case Move():
                    raise AssertionError(first)
                case _:
                    assert_never(first)

    def _wait(self, row: WorkloadRecord, wait: Wait) -> None:
        if not user_actions.is_reported(row, wait):
            self._merge(row, user_actions.waiting(row, wait))

    def _row(self, workload: WorkloadId) -> WorkloadRecord | None:
        """Return a row as the transitions so far leave it."""
        transition = self.transitions.get(workload)
        return self._workload_index.row(workload) if transition is None else transition.row

    def _merge(self, row: WorkloadRecord, transition: Transition) -> None:
        """Add a transition after the row's earlier ones: the last row, and the events of all."""
        before = self.transitions.get(row.id)
        if before is None:
            if transition.row is not row:
                self.transitions[row.id] = transition
            return
        only_queue_status = before.only_queue_status and transition.only_queue_status
        events = (*before.events, *transition.events)
        self.transitions[row.id] = Transition(
            transition.row, events, only_queue_status=only_queue_status
        )

    def _refuse(self, workload: WorkloadId, worker: str, text: str) -> None:
        self.refused.append(Refused(workload, worker, text))

    def _start(self, row: WorkloadRecord, decisions: Sequence[Start]) -> None:
        """Start workers together, or refuse all of them; those that have started are skipped."""
        starts = [decision for decision in decisions if not _is_carried_out(row, decision)]
        if not starts:
            return
        refusal = refusal_of_gang(row, starts)
        refusal = refusal or book_unless_refused(row.spec, starts, self._nodes, self._capacity_use)
        if refusal:
            for start in starts:
                self._refuse(row.id, start.worker, refusal)
            return
        port = self._free_port() if row.spec.workers > 1 else 0
        grants = [Grant(_index(row, s.worker), s.node, s.devices) for s in starts]
        self._merge(row, lifecycle.started(row, grants, now=self._now, master_port=port))

    def _stop(self, row: WorkloadRecord, decisions: Sequence[Stop]) -> None:
        """Stop the workers that are up; of one that restarts for a resize, cancel the restart."""
        named = {decision.worker for decision in decisions}
        indexes = [
            worker.index
            for worker in row.workers
            if worker.name in named and worker.state in {"starting", "running"}
        ]
        reason = _state_reason(decisions[0])
        if indexes:
            self._merge(row, lifecycle.stopped(row, indexes, reason, now=self._now))
        elif row.resize is not None and row.workers[row.resize.index].name in named:
            cancelled = without_resize(replace(row, reason=reason))
            self._merge(row, Transition(cancelled, (("stopping", reason.text),)))

    def _resize(self, row: WorkloadRecord, decision: Resize) -> None:
        """Restart an elastic worker on other devices of its node, unless that has begun."""
        index = _index(row, decision.worker)
        worker = row.workers[index]
        grant = Grant(index, decision.node, decision.devices)
        if index < 0 or not row.spec.elastic or len(row.workers) > 1:
            self._refuse(row.id, decision.worker, f"{decision.worker} cannot be resized")
            return
        if row.resize == grant or _is_carried_out(row, decision):
            return
        if worker.state not in ACTIVE or row.halt or row.intent != "run":
            self._refuse(row.id, decision.worker, f"{decision.worker} does not run")
            return
        allocated = {share.device for share in (*worker.devices, *incoming_devices(row))}
        added = tuple(share for share in decision.devices if share.device not in allocated)
        gain = replace(decision, devices=added)
        refusal = book_unless_refused(row.spec, [gain], self._nodes, self._capacity_use)
        if decision.node != worker.node:
            refusal = f"{decision.worker} runs on {worker.node}, not on {decision.node}"
        if refusal:
            self._refuse(row.id, decision.worker, refusal)
        elif worker.state == "stopping":
            self._merge(row, Transition(replace(row, resize=grant)))
        else:
            reason = _state_reason(decision)
            self._merge(row, lifecycle.resized(row, grant, reason, now=self._now))

    def _reserve(self, row: WorkloadRecord, decision: Reserve) -> None:
        """Reserve devices for a waiting worker; they may still be in use."""
        index = _index(row, decision.worker)
        refusal = book_unless_refused(row.spec, [decision], self._nodes)
        if index < 0:
            refusal = f"{row.id} has no worker {decision.worker}"
        elif row.workers[index].state not in {"pending", "reserved"}:
            refusal = f"{decision.worker} does not wait"
        if refusal:
            self._refuse(row.id, decision.worker, refusal)
        else:
            self._merge(row, user_actions.reserved(row, index, decision.node, decision.devices))


def _trailing_waits(decisions: Sequence[Decision]) -> Sequence[Wait]:
    """Return the waits at a plan's end."""
    non_waits = (n for n, d in enumerate(reversed(decisions)) if not isinstance(d, Wait))
    waits = next(non_waits, len(decisions))
    return cast("Sequence[Wait]", decisions[len(decisions) - waits :])


def _stop_of(move: Move) -> Stop:
    return Stop(workload=move.workload, worker=move.worker, reason=move.reason)


def _state_reason(decision: Stop | Resize) -> StateReason:
    why = decision.reason
    return StateReason(why.code, why.text, why.rule, why.for_ or "")


def _index(row: WorkloadRecord, worker: str) -> int:
    """Return a worker's index by its name; -1 if the row has none of that name."""
    return next((w.index for w in row.workers if w.name == worker), -1)


def _is_carried_out(row: WorkloadRecord, decision: Start | Resize) -> bool:
    """Return True if the worker is up on the decision's devices already."""
    index = _index(row, decision.worker)
    worker = row.workers[index]
    return (
        index >= 0
        and worker.state in {"starting", "running"}
        and (worker.node, worker.devices) == (decision.node, decision.devices)
    )


def _grouped(decisions: Sequence[Decision]) -> list[Sequence[Decision]]:
    """Group a workload's starts at its last one, and its stops at its first one."""
    starts: dict[WorkloadId, list[Start]] = {}
    stops: dict[WorkloadId, list[Stop]] = {}
    for decision in decisions:
        if isinstance(decision, Start):
            starts.setdefault(decision.workload, []).append(decision)
        elif isinstance(decision, Stop):
            stops.setdefault(decision.workload, []).append(decision)
    groups: list[Sequence[Decision]] = []
    for decision in decisions:
        if isinstance(decision, Start):
            if starts[decision.workload][-1] is decision:
                groups.append(starts[decision.workload])
        elif isinstance(decision, Stop):
            if stops[decision.workload][0] is decision:
                groups.append(stops[decision.workload])
        else:
            groups.append([decision])
    return groups
