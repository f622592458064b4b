"""The plan: differences between snapshot and state as decisions, with wait reasons (X).

Decisions are in the order of their execution; the projects' shares follow.
"""

from __future__ import annotations

from collections.abc import Mapping

from runai.hub_service.scheduler.explanations.cycle_counts import Census
from runai.hub_service.scheduler.explanations.queue_positions import waits_of
from runai.hub_service.scheduler.explanations.wait_reasons import Reasons
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
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.request_shape import Booking
from runai.hub_service.scheduler.steps.allocate import AllocateStep
from runai.hub_service.scheduler.steps.reclaim import Eviction, Reclaim


def plan_of(state: State, allocation: AllocateStep, reclaim: Reclaim) -> Plan:
    """Build the plan: decisions in the order of execution, then the projects."""
    losses = reclaim.losses
    census = Census(state)
    reasons = Reasons(state, allocation, reclaim, census)
    decisions: list[Decision] = [
        Unreserve(workload=member.item.name, worker=member.worker.name)
        for item in sorted(state.reserved, key=lambda item: item.age)
        for member in item.members
        if member.was is Phase.RESERVED and member.standing is Phase.PENDING
        if not _is_part(member)
    ]
    decisions += [
        Stop(
            workload=member.item.name,
            worker=member.worker.name,
            reason=reasons.of_loss(member, loss),
        )
        for member, loss in losses.items()
        if member.standing is Phase.GOING and not _is_part(member)
    ]
    placed = [m for m in dict.fromkeys(allocation.placed) if not _is_part(m)]
    moved = [m for m in placed if m.standing is Phase.MOVED]
    decisions += [_move(state, member, losses, reasons) for member in moved]
    decisions += _resizes(state, losses, reasons)
    decisions += [_start(state, m) for m in placed if m.standing is Phase.STARTED]
    if state.policy.reservations:
        decisions += [
            _reserve(state, m, census)
            for m in placed
            if m.standing is Phase.RESERVED
            and not (m.was is Phase.RESERVED and m.booking == m.origin)
        ]
    if state.policy.explain != "none":
        decisions += waits_of(state, reasons)
    return Plan(
        decisions=tuple(decisions),
        projects={name: _share(account) for name, account in sorted(state.tree.accounts.items())},
    )


def _is_part(member: PlannedWorker) -> bool:
    """Return True for an elastic worker's GPUs after the first, which represents them (E2)."""
    return member.item.sizes is not None and member.index > 0


def _resizes(
    state: State, losses: Mapping[PlannedWorker, Eviction], reasons: Reasons
) -> list[Resize]:
    """Return the resizes of running elastic workers (E2)."""
    resizes = []
    for item in sorted(state.resizable, key=lambda item: item.age):
        base, *parts = item.members
        if base.standing is not Phase.RUNNING:
            continue
        lost = [m for m in parts if m.standing is Phase.GOING and m in losses]
        grown = [m for m in parts if m.standing is Phase.STARTED]
        if lost or grown:
            node, booking = _place_of(state, base)
            of_loss = reasons.of_shrinking(lost, losses[lost[0]]) if lost else None
            resizes.append(
                Resize(
                    workload=item.name,
                    worker=base.worker.name,
                    node=node,
                    devices=_shares(base, booking),
                    reason=of_loss or reasons.of_growing(grown, node),
                )
            )
    return resizes


def _shares(member: PlannedWorker, booking: Booking) -> tuple[DeviceShare, ...]:
    devices = list(booking.devices)
    if member.item.sizes is not None:
        for part in member.item.members[1:]:
            if part.booking is not None and part.standing.holds_later:
                devices += part.booking.devices
    return tuple(DeviceShare(device, MilliGpu(booking.shares)) for device in sorted(devices))


def _place_of(state: State, member: PlannedWorker) -> tuple[str, Booking]:
    booking = member.booking
    assert booking is not None, "placed workers have a booking"
    return state.nodes[booking.node].name, booking


def _start(state: State, member: PlannedWorker) -> Start:
    node, booking = _place_of(state, member)
    return Start(
        workload=member.item.name,
        worker=member.worker.name,
        node=node,
        devices=_shares(member, booking),
    )


def _reserve(state: State, member: PlannedWorker, census: Census) -> Reserve:
    node, booking = _place_of(state, member)
    return Reserve(
        workload=member.item.name,
        worker=member.worker.name,
        node=node,
        devices=_shares(member, booking),
        waits_for=tuple(
            dict.fromkeys(
                m.worker.name
                for m in census.waited_for([member])
                if state.policy.name_others
                or m.item.workload.project == member.item.workload.project
            )
        ),
    )


def _move(
    state: State, member: PlannedWorker, losses: Mapping[PlannedWorker, Eviction], reasons: Reasons
) -> Move:
    node, booking = _place_of(state, member)
    return Move(
        workload=member.item.name,
        worker=member.worker.name,
        node=node,
        devices=_shares(member, booking),
        reason=reasons.of_move(member, losses[member], node),
    )


def _share(account: ProjectNode) -> ProjectShare:
    over = 0 if account.is_unlimited else max(0, account.allocated - account.quota)
    return ProjectShare(
        quota=None if account.is_unlimited else MilliGpu(account.quota),
        fair_share=MilliGpu(account.fair_share),
        allocated=MilliGpu(account.allocated),
        over_quota=MilliGpu(over),
    )
