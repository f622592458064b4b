"""The plan: differences between snapshot and state as decisions, with wait reasons (X).

Decisions are in the order of their execution; the projects' shares follow.
"""

from __future__ import annotations

from collections.abc import Mapping

from runai.hub_service.scheduler.explanations.cycle_counts import CycleCounts
from runai.hub_service.scheduler.explanations.decision_reasons import DecisionReasons
from runai.hub_service.scheduler.explanations.queue_positions import waits_of
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import (
    Decision,
    DeviceShare,
    Move,
    Plan,
    ProjectShare,
    Reserve,
    Resize,
    Start,
    Stop,
    Unreserve,
)
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorker
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.request_shape import Booking
from runai.hub_service.scheduler.steps.allocate import AllocateStep
from runai.hub_service.scheduler.steps.reclaim import Eviction, ReclaimStep


def plan_of(state: PlanningState, allocation: AllocateStep, reclaim: ReclaimStep) -> Plan:
    """Build the plan: decisions in the order of execution, then the projects."""
    evictions = reclaim.evictions
    counts = CycleCounts(state)
    reasons = DecisionReasons(state, allocation, reclaim, counts)
    decisions: list[Decision] = [
        Unreserve(workload=member.planned.name, worker=member.worker.name)
        for planned in sorted(state.reserved, key=lambda planned: planned.age)
        for member in planned.members
        if member.snapshot_phase is Phase.RESERVED and member.phase is Phase.PENDING
        if not _is_part(member)
    ]
    decisions += [
        Stop(
            workload=member.planned.name,
            worker=member.worker.name,
            reason=reasons.stop_reason(member, eviction),
        )
        for member, eviction in evictions.items()
        if member.phase is Phase.TERMINATING and not _is_part(member)
    ]
    placed = [m for m in dict.fromkeys(allocation.placed) if not _is_part(m)]
    moved = [m for m in placed if m.phase is Phase.MOVED]
    decisions += [_move(state, member, evictions, reasons) for member in moved]
    decisions += _resizes(state, evictions, reasons)
    decisions += [_start(state, m) for m in placed if m.phase is Phase.STARTED]
    if state.policy.reservations:
        decisions += [
            _reserve(state, m, counts)
            for m in placed
            if m.phase is Phase.RESERVED
            # The snapshot has unchanged reservations already.
            and not (m.snapshot_phase is Phase.RESERVED and m.booking == m.origin)
        ]
    if state.policy.explain != "none":
        decisions += waits_of(state, reasons)
    return Plan(
        decisions=tuple(decisions),
        projects={
            name: _project_share(project) for name, project in sorted(state.tree.projects.items())
        },
    )


def _is_part(member: PlannedWorker) -> bool:
    """Return True for an elastic worker's GPUs after the first, which represents them (E2)."""
    return member.planned.sizes is not None and member.index > 0


def _resizes(
    state: PlanningState, evictions: Mapping[PlannedWorker, Eviction], reasons: DecisionReasons
) -> list[Resize]:
    """Return the resizes of running elastic workers (E2)."""
    resizes = []
    for planned in sorted(state.resizable, key=lambda planned: planned.age):
        base, *parts = planned.members
        if base.phase is not Phase.RUNNING:
            continue
        lost = [m for m in parts if m.phase is Phase.TERMINATING and m in evictions]
        grown = [m for m in parts if m.phase is Phase.STARTED]
        if lost or grown:
            node, booking = _place_of(state, base)
            shrink_reason = reasons.shrink_reason(lost, evictions[lost[0]]) if lost else None
            resizes.append(
                Resize(
                    workload=planned.name,
                    worker=base.worker.name,
                    node=node,
                    devices=_device_shares(base, booking),
                    reason=shrink_reason or reasons.growth_reason(grown, node),
                )
            )
    return resizes


def _device_shares(member: PlannedWorker, booking: Booking) -> tuple[DeviceShare, ...]:
    """Return a worker's devices, of an elastic one with those of its parts (E2)."""
    devices = list(booking.devices)
    if member.planned.sizes is not None:
        for part in member.planned.members[1:]:
            if part.booking is not None and part.phase.holds_later:
                devices += part.booking.devices
    return tuple(DeviceShare(device, MilliGpu(booking.shares)) for device in sorted(devices))


def _place_of(state: PlanningState, member: PlannedWorker) -> tuple[str, Booking]:
    """Return the name of a placed worker's node, and its booking."""
    booking = member.booking
    assert booking is not None, "placed workers have a booking"
    return state.nodes[booking.node].name, booking


def _start(state: PlanningState, member: PlannedWorker) -> Start:
    node, booking = _place_of(state, member)
    return Start(
        workload=member.planned.name,
        worker=member.worker.name,
        node=node,
        devices=_device_shares(member, booking),
    )


def _reserve(state: PlanningState, member: PlannedWorker, counts: CycleCounts) -> Reserve:
    node, booking = _place_of(state, member)
    return Reserve(
        workload=member.planned.name,
        worker=member.worker.name,
        node=node,
        devices=_device_shares(member, booking),
        waits_for=tuple(
            dict.fromkeys(
                m.worker.name
                for m in counts.blocking_workers([member])
                if state.policy.name_others
                or m.planned.workload.project == member.planned.workload.project
            )
        ),
    )


def _move(
    state: PlanningState,
    member: PlannedWorker,
    evictions: Mapping[PlannedWorker, Eviction],
    reasons: DecisionReasons,
) -> Move:
    node, booking = _place_of(state, member)
    return Move(
        workload=member.planned.name,
        worker=member.worker.name,
        node=node,
        devices=_device_shares(member, booking),
        reason=reasons.move_reason(member, evictions[member], node),
    )


def _project_share(project: ProjectNode) -> ProjectShare:
    over = 0 if project.is_unlimited else max(0, project.allocated - project.quota)
    return ProjectShare(
        quota=None if project.is_unlimited else MilliGpu(project.quota),
        fair_share=MilliGpu(project.fair_share),
        allocated=MilliGpu(project.allocated),
        over_quota=MilliGpu(over),
    )
