"""Waiting workloads with their queue position and reason (O2, O3, X).

Workloads in one equivalence class have the same reason.
"""

from __future__ import annotations

from operator import attrgetter

from runai.hub_service.scheduler.explanations.decision_reasons import DecisionReasons
from runai.hub_service.scheduler.model.snapshot import Reason, Wait
from runai.hub_service.scheduler.state.equivalence_classes import EquivalenceClass
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorkload
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.previous_waits import QueueDigest

_RUNS = (Phase.RUNNING, Phase.STARTED, Phase.MOVED)
_WAITS = (Phase.PENDING, Phase.RESERVED)
_place_in_queue = attrgetter("place_in_queue")


def waits_of(state: PlanningState, reasons: DecisionReasons) -> list[Wait]:
    """Return the wait decision of every waiting workload: its position and reason."""
    queues: dict[str, list[PlannedWorkload]] = {}
    reason_by_workload: dict[PlannedWorkload, Reason] = {}
    digests: dict[str, QueueDigest] = {}
    unqueued = [*state.reserved, *state.stuck]
    changed = {planned.workload.project for planned in (*state.changed(), *unqueued)}
    for project, classes in _classes_by_project(state).items():
        if project not in changed and not reasons.lost and not reasons.blocked_by_hold:
            # The common case: the whole equivalence class has one reason.
            line = [(c, c.changes, _class_reason(state, c, reasons)) for c in classes]
            digests[project] = tuple(line)
            if state.turns is None and state.previous_waits.is_unchanged(project, digests[project]):
                continue
        queue = queues[project] = []
        for equivalence in classes:
            waits = _waits_of_class(state, equivalence, reasons)
            queue.extend(waits)
            reason_by_workload.update(waits)
    for planned in unqueued:
        if planned in reasons.lost and _ran_whole(planned):
            continue  # its stop decision has the reason
        if planned.count(*_RUNS) < planned.minimum and planned.count(*_WAITS):
            queues.setdefault(planned.workload.project, []).append(planned)
            reason_by_workload[planned] = state.previous_waits.reuse(
                reasons.wait_reason(planned, None)
            )
    turns = state.turns
    for queue in queues.values():
        if turns is None:
            queue.sort(key=_place_in_queue)
        else:
            queue[:] = turns.in_turn(queue)
    return state.previous_waits.store(queues, reason_by_workload, digests)


def _ran_whole(planned: PlannedWorkload) -> bool:
    """Return True if its minimum ran before this plan; otherwise it has waited all along."""
    return sum(m.snapshot_phase is Phase.RUNNING for m in planned.members) >= planned.minimum


def _classes_by_project(state: PlanningState) -> dict[str, list[EquivalenceClass]]:
    """Return the equivalence classes of workloads that wait for their minimum, by project."""
    classes: dict[str, list[EquivalenceClass]] = {}
    for project in state.equivalence_classes.projects:
        for equivalence in state.equivalence_classes.classes_of(project):
            head = equivalence.pod_sets[0]
            if not head.is_surplus and not head.is_growth:
                classes.setdefault(head.planned.workload.project, []).append(equivalence)
    return classes


def _class_reason(
    state: PlanningState, equivalence: EquivalenceClass, reasons: DecisionReasons
) -> Reason:
    head = equivalence.pod_sets[0]
    return state.previous_waits.reuse(reasons.wait_reason(head.planned, head))


def _waits_of_class(
    state: PlanningState, equivalence: EquivalenceClass, reasons: DecisionReasons
) -> dict[PlannedWorkload, Reason]:
    """Return the waiting workloads of an equivalence class with their reasons."""
    pod_sets = equivalence.pod_sets
    reuse, pending, reserved = state.previous_waits.reuse, Phase.PENDING, Phase.RESERVED
    waiting = [pod_set.planned for pod_set in pod_sets if pod_set.members[0].phase is pending]
    if len(waiting) == len(pod_sets) and not reasons.lost and not reasons.blocked_by_hold:
        # No pod set of this class changed.
        return dict.fromkeys(waiting, _class_reason(state, equivalence, reasons))
    waits = {}
    for pod_set in pod_sets:
        planned, phase = pod_set.planned, pod_set.members[0].phase
        if phase is pending:
            waits[planned] = reuse(reasons.wait_reason(planned, pod_set))
        elif phase is reserved:
            waits[planned] = reuse(reasons.wait_reason(planned, None))
    return waits
