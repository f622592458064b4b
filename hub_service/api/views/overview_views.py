"""Overview of all that a caller may see, at one instant."""

import heapq
from collections import Counter
from datetime import UTC, datetime

from runai.hub_service.api.views.read_model import ReadModel
from runai.hub_service.api.views.viewer import Viewer
from runai.hub_service.api.views.workload_queues import place
from runai.hub_service.model.gpu_types import by_node_type
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.model.workload_spec import build_quota
from runai.hub_service.scheduler.model.quantity import MilliGpu, gpu_text
from runai.hub_service.wire.schemas import NotificationView, Overview

MAX_NOTIFICATIONS = 10
"""Notifications in an overview."""

MAX_WAITING, MAX_OWN_WAITING = 200, 300
"""Waiting workloads in an overview: the first of thousands; the rest is counted."""


def overview_view(viewer: Viewer) -> Overview:
    """Build the overview of one read model.

    It leaves out workloads that finished long ago and the ends of long queues.
    """
    read_model = viewer.read_model
    waiting, left_out = _first_in_queue(viewer)
    visible = [*filter(viewer.may_see, read_model.queues.present), *waiting]
    visible.sort(key=lambda record: record.submitted)
    # `model_construct`: the parts are validated already, and validation would copy them.
    return Overview.model_construct(
        at=_time(read_model.at),
        projects=viewer.projects(),
        workloads=[*map(viewer.workload, visible)],
        waiting_left_out=left_out,
        nodes=viewer.nodes(),
        idle_gpu_hours_reclaimed=read_model.meter.reclaimed() / 3600,
        notifications=_notifications(viewer),
        notes=[*_left_out_notes(left_out), *(_admin_notes(viewer) if viewer.actor.admin else ())],
    )


def _first_in_queue(viewer: Viewer) -> tuple[list[WorkloadRecord], int]:
    """Return the first waiting workloads, the actor's own foremost, and the number left out.

    Each project contributes MAX_WAITING at most; `runai list` shows the ends of queues.
    """
    queues = viewer.read_model.queues
    own = queues.of_user.first(viewer.actor.name, MAX_OWN_WAITING)
    listed = {record.id: record for record in own if viewer.may_see(record)}
    lengths = {
        name: length for name, length in queues.of_project.lengths() if viewer.may_see_all_of(name)
    }
    # Sorted, so that ties have the same order each time.
    firsts = [queues.of_project.first(name, MAX_WAITING) for name in sorted(lengths)]
    for record in heapq.merge(*firsts, key=place):
        if len(listed) >= MAX_WAITING:
            break
        listed.setdefault(record.id, record)
    visible = sum(lengths.values())
    for (user, project), waiting in queues.of_user_and_project.items():
        # Of a project that the actor left, it sees its own workloads alone: all, or none of them.
        if user == viewer.actor.name and project not in lengths:
            visible += len(waiting) if viewer.may_see(next(iter(waiting.values()))) else 0
    return list(listed.values()), visible - len(listed)


def _notifications(viewer: Viewer) -> list[NotificationView]:
    recent = viewer.read_model.recent.of(viewer.actor.name, viewer.read_model.at)[
        :MAX_NOTIFICATIONS
    ]
    return [
        NotificationView(at=_time(n.at), kind=n.kind, workload=n.workload, text=n.text)
        for n in recent
    ]


def _admin_notes(viewer: Viewer) -> list[str]:
    """Return sentences on broken devices, missing MPS and quotas beyond the capacity."""
    roots = [r.spec for r in viewer.read_model.projects.values() if r.spec.parent is None]
    notes = [
        f"GPU {device.index} of {node} is taken out: {device.fault}."
        for node, devices in viewer.read_model.devices.items()
        for device in devices
        if device.fault
    ]
    for node, devices in viewer.read_model.devices.items():
        troubles = {
            viewer.read_model.agent_reports.sharing.unavailable_reason(device.uuid)
            for device in devices
        }
        notes += [f"MPS is not available on {node}: {why}." for why in sorted(troubles - {""})]
    for word, amounts in (
        ("Quotas", [p.quota for p in roots]),
        ("Build quotas", [build_quota(p) for p in roots]),
    ):
        total = sum(amount or 0 for amount in amounts)
        if total > viewer.read_model.capacity:
            notes.append(
                f"{word} add up to {gpu_text(total)} GPUs,"
                f" the cluster has {gpu_text(viewer.read_model.capacity)}."
            )
    return [*notes, *_notes_by_type(viewer.read_model)]


def _notes_by_type(read_model: ReadModel) -> list[str]:
    """Return a sentence for each GPU type of which more is guaranteed than there is."""
    specs = [record.spec for record in read_model.projects.values()]
    parents = {spec.parent for spec in specs}  # the core divides their children's quotas alone
    promised = Counter[str]()
    for spec in specs:
        if spec.quota_by_type and spec.name not in parents:
            table = by_node_type(spec.quota_by_type, read_model.gpu_types)
            promised.update({t: amount for t, amount in table.items() if amount})
    device_counts = Counter(d.name for devices in read_model.devices.values() for d in devices)
    return [
        f"Quotas of {gpu_type} add up to {gpu_text(MilliGpu(amount))} GPUs,"
        f" the cluster has {device_counts[gpu_type]} of them."
        for gpu_type, amount in sorted(promised.items())
        if gpu_type in device_counts and amount > 1000 * device_counts[gpu_type]
    ]


def _left_out_notes(left_out: int) -> list[str]:
    """Return the sentence on waiting workloads that the overview leaves out."""
    return (
        [f"{left_out} more wait than are listed here: `runai list --all` lists them."]
        if left_out
        else []
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
