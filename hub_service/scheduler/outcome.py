"""The plan: what changed between the snapshot and the state, with a reason for who waits (X).

Knows how standings become decisions, in which order they stand in a plan, and each project's
numbers after it. The sentences are `reasons`'. Called last by `cycle`.
"""

from __future__ import annotations

from collections.abc import Mapping

from runai.hub_service.scheduler.allocate import Allocation
from runai.hub_service.scheduler.census import Census
from runai.hub_service.scheduler.items import Member, Standing
from runai.hub_service.scheduler.kinds import Booking
from runai.hub_service.scheduler.model import (
    Decision,
    DeviceShare,
    Move,
    Plan,
    ProjectShare,
    Reserve,
    Start,
    Stop,
    Unreserve,
    Wait,
)
from runai.hub_service.scheduler.quantity import MilliGpu
from runai.hub_service.scheduler.reasons import Reasons
from runai.hub_service.scheduler.reclaim import Loss, Reclaim
from runai.hub_service.scheduler.state import State
from runai.hub_service.scheduler.tree import Account


def plan_of(state: State, allocation: Allocation, reclaim: Reclaim) -> Plan:
    """Write the decisions in the order in which they are applied, then the projects."""
    losses = reclaim.losses
    census = Census(state)
    reasons = Reasons(state, allocation, reclaim, census)
    decisions: list[Decision] = [
        Unreserve(workload=member.item.name, worker=member.worker.name)
        for item in sorted(state.reserved, key=lambda item: item.age)
        for member in item.members
        if member.was is Standing.RESERVED and member.standing is Standing.PENDING
    ]
    decisions += [
        Stop(
            workload=member.item.name,
            worker=member.worker.name,
            reason=reasons.of_loss(member, loss),
        )
        for member, loss in losses.items()
        if member.standing is Standing.GOING
    ]
    moved = [m for m in allocation.placed if m.standing is Standing.MOVED]
    decisions += [_move(state, member, losses, reasons) for member in dict.fromkeys(moved)]
    placed = list(dict.fromkeys(allocation.placed))
    decisions += [_start(state, m) for m in placed if m.standing is Standing.STARTED]
    if state.policy.reservations:
        decisions += [
            _reserve(state, m, census)
            for m in placed
            if m.standing is Standing.RESERVED
            and not (m.was is Standing.RESERVED and m.booking == m.origin)
        ]
    if state.policy.explain != "none":
        decisions += _waits(reasons)
    return Plan(
        decisions=tuple(decisions),
        projects={name: _share(account) for name, account in sorted(state.tree.accounts.items())},
    )


def _shares(booking: Booking) -> tuple[DeviceShare, ...]:
    return tuple(DeviceShare(device, MilliGpu(booking.shares)) for device in booking.devices)


def _place_of(state: State, member: Member) -> tuple[str, Booking]:
    booking = member.booking
    assert booking is not None, "placed workers have a booking"
    return state.nodes[booking.node].name, booking


def _start(state: State, member: Member) -> Start:
    node, booking = _place_of(state, member)
    return Start(
        workload=member.item.name,
        worker=member.worker.name,
        node=node,
        devices=_shares(booking),
    )


def _reserve(state: State, member: Member, census: Census) -> Reserve:
    node, booking = _place_of(state, member)
    return Reserve(
        workload=member.item.name,
        worker=member.worker.name,
        node=node,
        devices=_shares(booking),
        waits_for=tuple(m.worker.name for m in census.leaving(booking)),
    )


def _move(state: State, member: Member, losses: Mapping[Member, Loss], reasons: Reasons) -> Move:
    node, booking = _place_of(state, member)
    return Move(
        workload=member.item.name,
        worker=member.worker.name,
        node=node,
        devices=_shares(booking),
        reason=reasons.of_move(losses[member], node),
    )


def _share(account: Account) -> ProjectShare:
    over = 0 if account.is_unlimited else max(0, account.allocated - account.quota)
    return ProjectShare(
        quota=None if account.is_unlimited else MilliGpu(account.quota),
        fair_share=MilliGpu(account.fair_share),
        allocated=MilliGpu(account.allocated),
        over_quota=MilliGpu(over),
    )


def _waits(reasons: Reasons) -> list[Wait]:
    return [
        Wait(workload=item.name, reason=reasons.of_wait(item, unit), position=position)
        for queue in reasons.queues()
        for position, (item, unit) in enumerate(queue, 1)
    ]
