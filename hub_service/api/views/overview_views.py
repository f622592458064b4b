"""Overview of all that a caller may see, at one instant."""

import heapq
from collections import Counter
from datetime import UTC, datetime

from runai.hub_service.api.views.cluster_view import ReadModel
from runai.hub_service.api.views.workload_queues import place
from runai.hub_service.api.views.workload_views import Viewer
from runai.hub_service.model.gpu_types import by_node_type
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.model.workload_spec import build_quota
from runai.hub_service.scheduler.model.quantity import MilliGpu, gpu_text
from runai.hub_service.wire.schemas import NotificationView, Overview

TOLD = 10
"""Notifications in an overview."""

SHOWN_WAITING, SHOWN_OWN = 200, 300
"""Waiting workloads in an overview: the first of thousands; the rest is counted."""


def overview_view(viewer: Viewer) -> Overview:
    """Build the overview of one read model.

    It leaves out workloads that finished long ago and the ends of long queues.
    """
    world = viewer.world
    waiting, left_out = _first_in_queue(viewer)
    seen = [*filter(viewer.may_see, world.queues.present), *waiting]
    seen.sort(key=lambda record: record.submitted)
    # `model_construct`: the parts are validated already, and validation would copy them.
    return Overview.model_construct(
        at=_time(world.at),
        projects=viewer.projects(),
        workloads=[*map(viewer.workload, seen)],
        waiting_left_out=left_out,
        nodes=viewer.nodes(),
        idle_gpu_hours_reclaimed=world.meter.reclaimed() / 3600,
        notifications=_notifications(viewer),
        notes=[*_more(left_out), *(_notes(viewer) if viewer.actor.admin else ())],
    )


def _first_in_queue(viewer: Viewer) -> tuple[list[WorkloadRecord], int]:
    """Return the first waiting workloads, the actor's own foremost, and the number left out.

    Each project contributes SHOWN_WAITING at most; `runai list` shows the ends of queues.
    """
    queues = viewer.world.queues
    own = queues.of_user.first(viewer.actor.name, SHOWN_OWN)
    found = {record.id: record for record in own if viewer.may_see(record)}
    many = {name: each for name, each in queues.of_project.many() if viewer.may_see_all_of(name)}
    # Sorted, so that ties have the same order each time.
    firsts = [queues.of_project.first(name, SHOWN_WAITING) for name in sorted(many)]
    others = heapq.merge(*firsts, key=place)
    for record in others:
        if len(found) >= SHOWN_WAITING:
            break
        found.setdefault(record.id, record)
    left_out = sum(many.values()) - len(found)
    for (user, project), theirs in queues.alike.items():
        if user == viewer.actor.name and project not in many:
            left_out += len(theirs) if viewer.may_see(next(iter(theirs.values()))) else 0
    return list(found.values()), left_out


def _notifications(viewer: Viewer) -> list[NotificationView]:
    recent = viewer.world.recent.of(viewer.actor.name, viewer.world.at)[:TOLD]
    return [
        NotificationView(at=_time(n.at), kind=n.kind, workload=n.workload, text=n.text)
        for n in recent
    ]


def _notes(viewer: Viewer) -> list[str]:
    roots = [r.spec for r in viewer.world.projects.values() if r.spec.parent is None]
    notes = [
        f"GPU {device.index} of {node} is taken out: {device.fault}."
        for node, devices in viewer.world.devices.items()
        for device in devices
        if device.fault
    ]
    for node, devices in viewer.world.devices.items():
        troubles = {
            viewer.world.present.sharing.unavailable_reason(device.uuid) for device in devices
        }
        notes += [f"MPS is not available on {node}: {why}." for why in sorted(troubles - {""})]
    for word, amounts in (
        ("Quotas", [p.quota for p in roots]),
        ("Build quotas", [build_quota(p) for p in roots]),
    ):
        total = sum(amount or 0 for amount in amounts)
        if total > viewer.world.capacity:
            notes.append(
                f"{word} add up to {gpu_text(total)} GPUs,"
                f" the cluster has {gpu_text(viewer.world.capacity)}."
            )
    return [*notes, *_notes_by_type(viewer.world)]


def _notes_by_type(world: ReadModel) -> list[str]:
    """Return a sentence for each GPU type of which more is guaranteed than there is."""
    specs = [record.spec for record in world.projects.values()]
    parents = {spec.parent for spec in specs}  # the core divides their children's quotas alone
    promised = Counter[str]()
    for spec in specs:
        if spec.quota_by_type and spec.name not in parents:
            table = by_node_type(spec.quota_by_type, world.gpu_types)
            promised.update({t: amount for t, amount in table.items() if amount})
    there = Counter(d.name for devices in world.devices.values() for d in devices)
    return [
        f"Quotas of {gpu_type} add up to {gpu_text(MilliGpu(amount))} GPUs,"
        f" the cluster has {there[gpu_type]} of them."
        for gpu_type, amount in sorted(promised.items())
        if gpu_type in there and amount > 1000 * there[gpu_type]
    ]


def _more(waiting: int) -> list[str]:
    return (
        [f"{waiting} more wait than are listed here: `runai list --all` lists them."]
        if waiting
        else []
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
