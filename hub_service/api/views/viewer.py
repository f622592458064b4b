"""Views of workloads, projects and nodes, filtered by the caller's permissions.

Pure: a function of a `ReadModel` (the state at one instant) and an actor; no HTTP, no I/O. All
filtering happens here.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, cached_property, lru_cache

from pydantic import ValidationError

from runai.hub_service.api.auth.permissions import Action, Actor, is_member, is_project_admin, may
from runai.hub_service.api.views.device_views import device_view
from runai.hub_service.api.views.idle_views import idle_rules, idle_view
from runai.hub_service.api.views.memory_limit_views import limit_view, process_views
from runai.hub_service.api.views.read_model import DeviceState, NodeResources, ReadModel
from runai.hub_service.api.views.start_forecasts import start_view
from runai.hub_service.api.views.training_views import elastic_view, metrics_view, progress_view
from runai.hub_service.api.views.workload_facts import workload_facts
from runai.hub_service.api.views.workload_queues import ProjectSums
from runai.hub_service.model import time_limits
from runai.hub_service.model.gpu_types import table_notes
from runai.hub_service.model.records import (
    Code,
    HistoryEvent,
    ProjectSpec,
    TimeRules,
    WorkerRecord,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
    killed_text,
    last_move,
    unsaved_text,
)
from runai.hub_service.model.workload_spec import build_quota
from runai.hub_service.scheduler.model.quantity import (
    MilliGpu,
    count_text,
    fraction_of_memory,
    gpu_text,
)
from runai.hub_service.wire.device_schemas import DeviceView, NodeView
from runai.hub_service.wire.program_schemas import CodeView
from runai.hub_service.wire.schemas import (
    DeviceShareView,
    HistoryView,
    MeasuredView,
    ProjectView,
    ReasonView,
    RunTimeView,
    TimePut,
    WorkerView,
    WorkloadDetail,
    WorkloadView,
)
from runai.hub_service.wire.workload_request import request_fields


def version_of(record: WorkloadRecord) -> str:
    """Return an opaque version that changes with anything a caller sees, except measurements."""
    workers = [(w.state, w.node, w.devices, w.exit_code) for w in record.workers]
    visible = (
        record.state,
        workers,
        record.reason,
        record.position,
        record.attempts,
        record.pauses,
        record.failures,
        record.elastic,
        record.unsaved,
        record.killed,
        record.code,
        record.left,
        record.states,
    )
    return hashlib.blake2b(repr(visible).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Viewer:
    """Read model filtered for one actor."""

    read_model: ReadModel
    actor: Actor

    # -- workloads -------------------------------------------------------------------------------

    def may_see(self, record: WorkloadRecord) -> bool:
        """Return True if the actor may see a workload."""
        spec = record.spec
        key = spec.project, spec.user
        is_visible = self._visible.get(key)
        if is_visible is None:
            is_own = spec.user == self.actor.name
            project = self.read_model.spec(spec.project)
            is_visible = self._visible[key] = self.may_see_all_of(spec.project) or (
                is_own and may(self.actor, Action.SEE_WORKLOAD, project, spec)
            )
        return is_visible

    @cached_property
    def _visible(self) -> dict[tuple[str, str], bool]:
        """Cache of `may_see`, by project and user."""
        return {}

    def may_see_all_of(self, project: str) -> bool:
        """Return True if the actor may see every workload of a project."""
        is_visible = self._visible_projects.get(project)
        if is_visible is None:
            is_visible = may(self.actor, Action.SEE_WORKLOAD, self.read_model.spec(project))
            self._visible_projects[project] = is_visible
        return is_visible

    @cached_property
    def _visible_projects(self) -> dict[str, bool]:
        return {}

    def may_change(self, record: WorkloadRecord) -> bool:
        """Return True if the actor may pause, resume and delete a workload."""
        return self._rights(record.spec)[0]

    def workload(self, record: WorkloadRecord) -> WorkloadView:
        """Return a workload's view for lists."""
        read_model = self.read_model
        return read_model.view_cache.view(
            record,
            self._rights(record.spec),
            read_model.start_of(record),
            read_model.view_inputs(record),
            read_model.measurement_times(record),
            lambda: self._measured_fields(record),
            lambda: WorkloadView(**self._workload_fields(record)),
        )

    def _rights(self, spec: WorkloadSpec) -> tuple[bool, bool]:
        """Return whether the actor may change a workload, and whether it may read it."""
        key = spec.project, spec.user
        rights = self._cached_rights.get(key)
        if rights is None:
            project = self.read_model.spec(spec.project)
            rights = self._cached_rights[key] = (
                may(self.actor, Action.CHANGE_WORKLOAD, project, spec),
                may(self.actor, Action.READ_WORKLOAD, project, spec),
            )
        return rights

    @cached_property
    def _cached_rights(self) -> dict[tuple[str, str], tuple[bool, bool]]:
        """Cache of rights, equal for all workloads of a user in a project."""
        return {}

    def detail(self, record: WorkloadRecord, history: Sequence[HistoryEvent]) -> WorkloadDetail:
        """Return a workload's details, for callers that may read it."""
        spec = record.spec
        changes, _reads = self._rights(spec)  # a read-only token of the owner changes nothing
        is_own = changes and spec.user == self.actor.name
        detail = WorkloadDetail(
            **{
                **_same_named(record, WorkloadDetail),
                **self._workload_fields(record),
                "moved": last_move(history) or record.moved,
                "env_names": sorted(spec.env.keys() - set(spec.inherited)) if is_own else [],
                "python": record.code.python if record.code else "",
                "options": _options(spec),
                "code": _code(spec.code),
                "code_started": _code(record.code),
                "reported": metrics_view(self.read_model.progress.get(record.id)),
                "processes": process_views(
                    record, self.read_model.agent_reports, self.read_model.at
                ),
                "history": [HistoryView(at=_time(e.at), kind=e.kind, text=e.text) for e in history],
            }
        )
        facts = workload_facts(detail, _time(self.read_model.at))
        return detail.model_copy(update={"facts": facts})

    def _workload_fields(self, record: WorkloadRecord) -> dict[str, object]:
        """Return the fields that lists and details share."""
        read_model, spec = self.read_model, record.spec
        start = read_model.start_of(record)
        changes, reads = self._rights(spec)
        return {
            **_same_named(record, WorkloadView),
            "gpus": self._requested_milli(record) / 1000,
            "gpu_memory_mib": spec.gpu_memory_mib or None,
            "cpu": spec.cpu_milli * spec.workers / 1000,
            "memory_mib": spec.memory_mib * spec.workers,
            "allocated": record.allocated / 1000,
            "workers": [self._worker(worker) for worker in record.workers],
            "reason": self._visible_reason(record),
            "expected_start": start_view(start) if start else None,
            "run_time": _run_time(record, read_model.spec(spec.project)),
            "pauses": len(record.pauses),
            "moved": record.moved if reads else "",
            "unsaved": unsaved_text(record) if record.unsaved and reads else "",
            "killed": killed_text(spec) if record.killed and reads else "",
            "notice": read_model.agent_reports.notice(read_model.at, record.id, reads=reads),
            "elastic": elastic_view(record),
            "progress": progress_view(read_model.progress.get(record.id), reads=reads),
            "simulated": read_model.simulated,
            "manageable": changes,
            "version": version_of(record),
            **self._measured_fields(record),
        }

    def _measured_fields(self, record: WorkloadRecord) -> dict[str, object]:
        """Return the fields that change with each agent report."""
        read_model = self.read_model
        now = read_model.meter.current(record.id) if record.allocated else None
        return {
            "measured": MeasuredView(
                utilized=now[0] if now else None,
                utilized_average=read_model.meter.average(record.id),
                memory_used_mib=now[1] if now else None,
                gpu_hours=read_model.meter.totals(record.id).allocated_s / 3600,
            ),
            "limit": limit_view(record, read_model.devices, read_model.agent_reports),
            "idle": idle_view(read_model.idle(record.id), read_model.at),
        }

    def _visible_reason(self, record: WorkloadRecord) -> ReasonView | None:
        """Return why a workload waits or ended, without text that the actor may not read."""
        why = record.reason
        if why is None:
            return None
        _, reads = self._rights(record.spec)
        # The system's error text contains the owner's programs and paths.
        text = why.text if reads else _PUBLIC_REASONS.get(why.code, why.text)
        return ReasonView(
            code=why.code, rule=why.rule, text=text, gains=why.gains, position=record.position
        )

    def _requested_milli(self, record: WorkloadRecord) -> int:
        """Return the milli-GPU of all workers; memory as a fraction of the largest device."""
        spec = record.spec
        if spec.gpu_memory_mib and self.read_model.largest_device_mib:
            each = fraction_of_memory(spec.gpu_memory_mib, self.read_model.largest_device_mib)
            return each * spec.workers
        return spec.gpus * spec.workers

    def _worker(self, worker: WorkerRecord) -> WorkerView:
        devices = (self.read_model.device(worker.node, share.device) for share in worker.devices)
        return WorkerView(
            name=worker.name,
            index=worker.index,
            state=worker.state,
            node=worker.node,
            gpu_type=next((device.name for device in devices if device), ""),
            devices=self.shares(worker),
            started=_maybe_time(worker.started),
            exit_code=worker.exit_code,
        )

    def shares(self, worker: WorkerRecord) -> list[DeviceShareView]:
        """Return the devices that a worker holds."""
        views = []
        for share in worker.devices:
            device = self.read_model.device(worker.node, share.device)
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
        """Return all projects: quotas are visible to all users."""
        return [self.project(record.spec) for record in self.read_model.projects.values()]

    def project(self, spec: ProjectSpec) -> ProjectView:
        """Return a project's view, with the shares of the last cycle."""
        read_model, actor = self.read_model, self.actor
        inside = actor.admin or actor.kind == "hub" or is_member(actor, spec)
        sums = read_model.sums.get(spec.name, ProjectSums())
        share = read_model.shares.get(spec.name)
        return ProjectView(
            name=spec.name,
            parent=spec.parent,
            quota=_gpus(spec.quota),
            quota_by_type=None
            if spec.quota_by_type is None
            else {name: _gpus(amount) for name, amount in spec.quota_by_type.items()},
            build_quota=_gpus(build_quota(spec)),
            limit=_gpus(spec.limit),
            weight=spec.weight,
            priority=spec.priority,
            never_lent=spec.never_lent / 1000,
            min_runtime=spec.min_runtime,
            node_types_build=_list(spec.node_types_build),
            node_types_train=_list(spec.node_types_train),
            # Only members see a project's members.
            members=list(spec.members) if inside else [],
            groups=list(spec.groups) if inside else [],
            admins=list(spec.admins) if inside else [],
            admin_groups=list(spec.admin_groups) if inside else [],
            allocated=sums.allocated / 1000,
            build_allocated=sums.building / 1000,
            fair_share=share.fair_share / 1000 if share else 0,
            over_quota=share.over_quota / 1000 if share else 0,
            waiting=sums.waiting,
            utilized=sums.utilized,
            idle_session=idle_rules(spec.idle_session),
            idle_job=idle_rules(spec.idle_job),
            time_session=_time_rules(spec.time_session),
            time_job=_time_rules(spec.time_job),
            umask=spec.umask,
            may_admin=actor.admin or is_project_admin(actor, spec),
            may_submit=may(actor, Action.SUBMIT, spec),
            notes=[
                *_limit_notes(sums.allocated, spec.limit),
                *table_notes(spec.quota_by_type or {}, read_model.gpu_types),
                *(self._former_member_notes(spec.name) if inside else ()),
            ],
        )

    def _former_member_notes(self, project: str) -> Iterator[str]:
        """Yield a sentence on each user who left a project: what runs, and what does not start."""
        for user in self.read_model.former_members.get(project, ()):
            unfinished = [
                record
                for record in self.read_model.workloads
                if (record.spec.project, record.spec.user) == (project, user)
                and not record.state.finished
            ]
            running = sum(1 for record in unfinished if record.state in _RUNNING)
            waiting = len(unfinished) - running
            parts = [
                *([f"{running} {'runs' if running == 1 else 'run'} on"] if running else []),
                *([f"{waiting} {'does' if waiting == 1 else 'do'} not start"] if waiting else []),
            ]
            yield f"{user} is no member any more: of {user}'s workloads {' and '.join(parts)}"

    def nodes(self) -> list[NodeView]:
        """Return every device; holders are named only to callers that may see them."""
        holding = self.read_model.queues.holding
        visible = frozenset(name for name in holding.by_project if self.may_see_all_of(name))
        return [
            NodeView(
                name=name,
                devices=[
                    self._device(name, device_state, visible) for device_state in device_states
                ],
                **self.read_model.node_resources.get(name, NodeResources())._asdict(),
            )
            for name, device_states in self.read_model.device_states.items()
        ]

    def _device(
        self, node: str, device_state: DeviceState, visible_projects: frozenset[str]
    ) -> DeviceView:
        """Return a device's view; the actor sees all users of `visible_projects`."""
        actor, holders = self.actor, device_state.holders
        # The cache key has all that differs between readers: visible holders and visible accounts.
        visible_holders: tuple[bool, ...] = ()
        if actor.name in holders.users or not holders.projects.isdisjoint(visible_projects):
            visible_holders = tuple([self.may_see(record) for record, _ in holders.shares])
        visible_accounts = (
            bool(device_state.other_accounts) and actor.admin,
            actor.name if actor.name in device_state.other_accounts else "",
        )
        return self.read_model.view_cache.device(
            (node, device_state.device.index, visible_holders, visible_accounts),
            device_state,
            lambda: device_view(device_state, actor=actor, sees=self.may_see),
        )


def _limit_notes(allocated: int, limit: MilliGpu | None) -> list[str]:
    if limit is None or allocated <= limit:
        return []
    text = f"holds {count_text(allocated)}, {gpu_text(allocated - limit)} above its limit"
    return [f"{text}; nothing starts until it is below, and it is the first to give GPUs back"]


_RUNNING = (WorkloadState.STARTING, WorkloadState.RUNNING)
_PUBLIC_REASONS = {
    "failed": "failed",
    "not_started": "could not be started",
    "not_running": "does not run yet",
}


@lru_cache(maxsize=256)
def _time_rules(rules: TimeRules) -> TimePut:
    return TimePut(**asdict(rules))


def _run_time(record: WorkloadRecord, project: ProjectSpec | None) -> RunTimeView | None:
    """Return the running time of a workload with a limit, and its end."""
    if record.spec.max_runtime is None:
        return None
    return RunTimeView(
        ran_s=record.ran_s,
        runs_since=_maybe_time(record.runs_since),
        ends_at=_maybe_time(time_limits.ends_at(record)),
        warns_at=_maybe_time(time_limits.warns_at(record, project)),
    )


def _same_named(record: WorkloadRecord, view: type[WorkloadView]) -> dict[str, object]:
    """Return the fields of a view that a workload's request and status have under their names.

    A view has public fields only; those in another unit or form are replaced by its maker.
    """
    of_spec, of_record = _shared_names(view)
    spec = record.spec
    fields = {name: getattr(spec, name) for name in of_spec}
    fields.update((name, getattr(record, name)) for name in of_record)
    return fields


@cache
def _shared_names(view: type[WorkloadView]) -> tuple[list[str], list[str]]:
    """Return the names that a view shares with a specification, and with a record."""
    names = view.model_fields
    of_spec, of_record = [
        [n for n in names if hasattr(c, n)] for c in (WorkloadSpec, WorkloadRecord)
    ]
    return of_spec, of_record


def _options(spec: WorkloadSpec) -> dict[str, bool | int | str]:
    """Return the values of a request's fields for which the view has no field, if they are set."""
    return {
        name: value
        for name in _OPTION_NAMES
        if (value := getattr(spec, name, None)) not in (None, "")
    }


_OPTION_NAMES = [
    field.name
    for field in request_fields()
    if field.name not in WorkloadDetail.model_fields and not field.is_mapping
]


def _code(code: Code | None) -> CodeView | None:
    """Convert the code of a job; None: it is unknown, or a Job's annotations have another form."""
    if code is None or not (text := code.text()):
        return None
    try:
        return CodeView(files=dict(code.files), commit=code.commit, text=text)
    except ValidationError:  # of a Job's annotations
        return None


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _maybe_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else _time(seconds)


def _gpus(milli: MilliGpu | None) -> float | None:
    return None if milli is None else milli / 1000


def _list(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)
