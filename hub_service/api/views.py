"""What callers are shown: the cluster's records as wire schemas, each as the caller may see them.

Pure: takes a `World` (everything at one instant) and an actor; knows no HTTP and awaits nothing.
What a caller must not see is left out here and nowhere else.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from runai.hub_service.agent.devices import Device
from runai.hub_service.api.device_views import device_view
from runai.hub_service.api.elastic_views import elastic_view
from runai.hub_service.api.idle_views import idle_rules, idle_view
from runai.hub_service.api.limit_views import limit_view, process_views
from runai.hub_service.api.permissions import (
    Action,
    Actor,
    is_member,
    is_project_admin,
    may,
)
from runai.hub_service.api.progress_views import metrics_view, progress_view
from runai.hub_service.api.schemas import (
    DeviceShareView,
    DeviceView,
    HistoryView,
    NodeView,
    NotificationView,
    Overview,
    ProjectView,
    ReasonView,
    WorkerView,
    WorkloadDetail,
    WorkloadView,
)
from runai.hub_service.api.world import World
from runai.hub_service.clusters.records import (
    HistoryEvent,
    ProjectSpec,
    WorkerRecord,
    WorkloadRecord,
    WorkloadState,
)
from runai.hub_service.scheduler.quantity import MilliGpu, fraction_of_memory, gpu_text
from runai.hub_service.submission import build_quota

__all__ = ["Viewer", "version_of"]

TOLD = 10
"""Notifications in an overview."""

RECENT = 100
"""Finished workloads in an overview; `workloads` lists all."""


@dataclass(frozen=True)
class Viewer:
    """The world as one actor may see it."""

    world: World
    actor: Actor

    # -- workloads -------------------------------------------------------------------------------

    def sees(self, record: WorkloadRecord) -> bool:
        """Tell whether the actor may know of a workload."""
        project = self.world.spec(record.spec.project)
        return may(self.actor, Action.SEE_WORKLOAD, project, record.spec)

    def workloads(self) -> list[WorkloadView]:
        """Show all workloads that the actor may see, oldest first."""
        return [self.workload(record) for record in self.world.workloads if self.sees(record)]

    def workload(self, record: WorkloadRecord) -> WorkloadView:
        """Show a workload as in a list."""
        return WorkloadView(**self._workload(record))

    def detail(self, record: WorkloadRecord, history: Sequence[HistoryEvent]) -> WorkloadDetail:
        """Show a workload with all that only those in charge of it may read."""
        spec = record.spec
        return WorkloadDetail(
            **self._workload(record),
            command=None if spec.command is None else list(spec.command),
            workdir=spec.workdir,
            source=spec.source,
            backoff_limit=spec.backoff_limit,
            grace_seconds=spec.grace_seconds,
            expected_runtime=spec.expected_runtime,
            array_index=spec.array_index,
            image=spec.image,
            reported=metrics_view(self.world.progress.get(record.id)),
            checkpoint_dir=record.checkpoint_dir,
            log_dir=record.log_dir,
            processes=process_views(record, self.world.present, self.world.at),
            history=[HistoryView(at=_time(e.at), kind=e.kind, text=e.text) for e in history],
        )

    def _workload(self, record: WorkloadRecord) -> dict[str, object]:
        world, spec = self.world, record.spec
        measured = world.meter.current(record.id) if record.allocated else None
        return {
            "id": record.id,
            "project": spec.project,
            "name": spec.name,
            "user": spec.user,
            "kind": spec.kind,
            "server": spec.server,
            "state": record.state.value,
            "preemptible": spec.preemptible,
            "priority": spec.priority,
            "gpus": self._asked(record) / 1000,
            "gpu_memory_mib": spec.gpu_memory_mib or None,
            "allocated": record.allocated / 1000,
            "workers": [self._worker(worker) for worker in record.workers],
            "min_workers": spec.min_workers,
            "submitted": _time(record.submitted),
            "started": _maybe_time(record.started),
            "finished": _maybe_time(record.finished),
            "reason": _reason(record),
            "pauses": len(record.pauses),
            "attempts": record.attempts,
            "failures": record.failures,
            "exit_code": record.exit_code,
            "utilized": measured[0] if measured else None,
            "utilized_average": world.meter.average(record.id),
            "memory_used_mib": measured[1] if measured else None,
            "gpu_hours": world.meter.totals(record.id).allocated_s / 3600,
            "limit": limit_view(record, world.devices, world.present),
            "notice": world.present.notice(world.at, record.id),
            "idle": idle_view(world.idle(record.id), world.at),
            "elastic": elastic_view(record),
            "progress": progress_view(world.progress.get(record.id)),
            "released": _maybe_time(record.released),
            "simulated": world.simulated,
            "mine": may(self.actor, Action.CHANGE_WORKLOAD, world.spec(spec.project), spec),
            "version": version_of(record),
        }

    def _asked(self, record: WorkloadRecord) -> int:
        spec = record.spec
        if spec.gpu_memory_mib and self.world.largest_device_mib:
            each = fraction_of_memory(spec.gpu_memory_mib, self.world.largest_device_mib)
            return each * spec.workers
        return spec.gpus * spec.workers

    def _worker(self, worker: WorkerRecord) -> WorkerView:
        return WorkerView(
            name=worker.name,
            index=worker.index,
            state=worker.state,
            node=worker.node,
            devices=self.shares(worker),
            started=_maybe_time(worker.started),
            exit_code=worker.exit_code,
        )

    def shares(self, worker: WorkerRecord) -> list[DeviceShareView]:
        """Show the devices that a worker holds."""
        views = []
        for share in worker.devices:
            device = self.world.device(worker.node, share.device)
            views.append(
                DeviceShareView(
                    device=share.device,
                    uuid=device.uuid if device else "",
                    gpus=share.gpus / 1000,
                )
            )
        return views

    # -- projects and nodes ----------------------------------------------------------------------

    def projects(self) -> list[ProjectView]:
        """Show all projects: quota bars are everybody's to see."""
        return [self.project(record.spec) for record in self.world.projects.values()]

    def project(self, spec: ProjectSpec) -> ProjectView:
        """Show a project with the shares of the last cycle."""
        world, actor = self.world, self.actor
        inside = actor.admin or actor.kind == "hub" or is_member(actor, spec)
        records = world.by_project.get(spec.name, ())
        share = world.shares.get(spec.name)
        measured = [m for r in records if r.allocated and (m := world.meter.current(r.id))]
        building = [r for r in records if not r.spec.preemptible]
        return ProjectView(
            name=spec.name,
            parent=spec.parent,
            quota=_gpus(spec.quota),
            build_quota=_gpus(build_quota(spec)),
            limit=_gpus(spec.limit),
            weight=spec.weight,
            priority=spec.priority,
            never_lent=spec.never_lent / 1000,
            min_runtime=spec.min_runtime,
            node_types_build=_list(spec.node_types_build),
            node_types_train=_list(spec.node_types_train),
            # Who is in a project is for those who are.
            members=list(spec.members) if inside else [],
            groups=list(spec.groups) if inside else [],
            admins=list(spec.admins) if inside else [],
            admin_groups=list(spec.admin_groups) if inside else [],
            allocated=sum(r.allocated for r in records) / 1000,
            build_allocated=sum(r.allocated for r in building) / 1000,
            fair_share=share.fair_share / 1000 if share else 0,
            over_quota=share.over_quota / 1000 if share else 0,
            waiting=sum(r.state in _WAITING for r in records),
            utilized=sum(gpus for gpus, _ in measured) if measured else None,
            idle_session=idle_rules(spec.idle_session),
            idle_job=idle_rules(spec.idle_job),
            may_admin=actor.admin or is_project_admin(actor, spec),
            may_submit=may(actor, Action.SUBMIT, spec),
        )

    def nodes(self) -> list[NodeView]:
        """Show every device; whoever holds it has a name only for those who may see them."""
        return [
            NodeView(name=name, devices=[self._device(name, device) for device in devices])
            for name, devices in self.world.devices.items()
        ]

    def _device(self, node: str, device: Device) -> DeviceView:
        world = self.world
        held = [
            (record, share.gpus)
            for record in world.workloads
            for worker in record.workers
            if worker.node == node
            for share in worker.devices
            if share.device == device.index
        ]
        measured = world.meter.device(device.uuid)
        running = world.present.on(world.at, device.uuid)
        return device_view(device, held, measured, running, actor=self.actor, sees=self.sees)

    def overview(self) -> Overview:
        """Show everything, without workloads that finished long ago."""
        finished = [r.id for r in self.world.workloads if r.state.finished]
        old = set(finished[:-RECENT])
        seen = [r for r in self.world.workloads if r.id not in old and self.sees(r)]
        return Overview(
            at=_time(self.world.at),
            projects=self.projects(),
            workloads=[self.workload(record) for record in seen],
            nodes=self.nodes(),
            idle_gpu_hours_reclaimed=self.world.meter.reclaimed() / 3600,
            notifications=self._notifications(),
            notes=self._notes() if self.actor.admin else [],
        )

    def _notifications(self) -> list[NotificationView]:
        recent = self.world.recent.of(self.actor.name, self.world.at)[:TOLD]
        return [
            NotificationView(at=_time(n.at), kind=n.kind, workload=n.workload, text=n.text)
            for n in recent
        ]

    def _notes(self) -> list[str]:
        roots = [r.spec for r in self.world.projects.values() if r.spec.parent is None]
        notes = [
            f"GPU {device.index} of {node} is taken out: {device.fault}."
            for node, devices in self.world.devices.items()
            for device in devices
            if device.fault
        ]
        for node, devices in self.world.devices.items():
            troubles = {self.world.present.sharing.trouble(device.uuid) for device in devices}
            notes += [f"MPS cannot be had on {node}: {why}." for why in sorted(troubles - {""})]
        for word, amounts in (
            ("Quotas", [p.quota for p in roots]),
            ("Build quotas", [build_quota(p) for p in roots]),
        ):
            total = sum(amount or 0 for amount in amounts)
            if total > self.world.capacity:
                notes.append(
                    f"{word} add up to {gpu_text(total)} GPUs,"
                    f" the cluster has {gpu_text(self.world.capacity)}."
                )
        return notes


_WAITING = frozenset({WorkloadState.QUEUED, WorkloadState.PAUSED, WorkloadState.RETRYING})


def version_of(record: WorkloadRecord) -> str:
    """Return an opaque text that differs whenever a caller would be shown something else.

    Measurements do not count: they change all the time.
    """
    held = [(w.state, w.node, w.devices, w.exit_code) for w in record.workers]
    shown = (
        record.state,
        held,
        record.reason,
        record.position,
        record.attempts,
        record.pauses,
        record.failures,
        record.elastic,
    )
    return hashlib.blake2b(repr(shown).encode(), digest_size=8).hexdigest()


def _reason(record: WorkloadRecord) -> ReasonView | None:
    why = record.reason
    if why is None:
        return None
    return ReasonView(
        code=why.code, rule=why.rule, text=why.text, gains=why.gains, position=record.position
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _maybe_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else _time(seconds)


def _gpus(milli: MilliGpu | None) -> float | None:
    return None if milli is None else milli / 1000


def _list(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)
