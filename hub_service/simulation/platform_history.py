"""The platform's own past as a trace, with the current nodes, quotas and policy.

It converts API replies to rows, nodes and projects, and reports which facts of the past are
missing. A duration is the time with allocated GPUs, so a job that still runs counts with its work
so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from runai.hub_service.model.gpu_types import total
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.model.request_codec import workload_of
from runai.hub_service.scheduler.model.json_codec import InvalidSnapshot
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, MilliGpu
from runai.hub_service.scheduler.model.snapshot import (
    LeftOut,
    Node,
    Policy,
    Project,
    Snapshot,
    Workload,
)
from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json
from runai.hub_service.simulation.traces import TraceRow
from runai.hub_service.wire.amounts import LONGEST_S, seconds
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.usage_schemas import PastWorkload

RESUME_S: Final = 60
"""Assumed cost of a pause for a job: save, start and read its checkpoint."""

EVERY_S: Final = 1
"""Interval of cycles: the platform plans right after a change; a replay has whole seconds."""


def seconds_of(length: str) -> int:
    """Parse a duration; the unit is required, since 30 hardly means seconds.

    >>> seconds_of("30d"), seconds_of("12h")
    (2592000, 43200)

    Raises:
        InvalidRequest: it is no duration, or has no unit.
    """
    try:
        found = 0 if length.strip().isdecimal() else seconds(length)
    except ValueError:
        found = 0
    if not isinstance(found, int) or not 0 < found <= LONGEST_S:
        raise InvalidRequest(f"{length!r} is not a valid duration.", hint="Write 30d, 12h or 90m.")
    return found


def rows_of(past: Iterable[PastWorkload]) -> list[TraceRow]:
    """Return the past workloads as a trace, in order of submission.

    Raises:
        InvalidRequest: a workload's request is unknown to this version.
    """
    rows: list[TraceRow] = []
    seen: dict[str, int] = {}
    for workload in past:
        seen[workload.id] = again = seen.get(workload.id, 0) + 1
        name = workload.id if again == 1 else f"{workload.id}:{again}"
        try:
            rows.append(_row(name, workload))
        except InvalidSnapshot as wrong:
            raise _not_understood(wrong) from wrong
    return sorted(rows, key=lambda row: (row.submit_s, row.job))


def _row(name: str, past: PastWorkload) -> TraceRow:
    request, gpus = None, _estimated_request(past.gpus)
    # Subtract the cost of the real pauses; the replay adds the cost of its own.
    ran_s = past.held_s - RESUME_S * max(0, past.starts - 1)
    if past.asked is not None:
        request = replace(
            workload_of(name, past.project, past.asked),
            user=past.user,
            submitted=int(past.submitted.timestamp()),
        )
        if requested_milli := sum(
            worker.gpus * worker.devices_wanted for worker in request.workers
        ):
            gpus = requested_milli
        if _is_elastic(request) and requested_milli:
            # Scale to the duration with all requested GPUs: work is proportional to GPUs.
            ran_s *= past.gpus * WHOLE_GPU / requested_milli
    return TraceRow(
        job=name,
        project=past.project,
        submit_s=int(past.submitted.timestamp()),
        gpus=gpus,
        duration_s=max(1, round(ran_s)),
        kind=past.kind if request is None else request.kind,
        user=past.user,
        checkpoint_cost_s=RESUME_S,
        request=request,
    )


def _not_understood(wrong: InvalidSnapshot) -> InvalidRequest:
    return InvalidRequest(
        f"The platform's past cannot be read: {wrong}.",
        hint="Is this client as new as the platform?",
    )


def _is_elastic(workload: Workload) -> bool:
    """Return True if its allocation may change while it runs."""
    return workload.gpus_max is not None or workload.minimum < len(workload.workers)


def _estimated_request(gpus: float) -> int:
    """Estimate the requested milli-GPU from the average allocation."""
    if gpus < 1:
        return max(1, round(gpus * WHOLE_GPU))
    return WHOLE_GPU * round(gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentCluster:
    """Cluster, projects and policy of the platform's last cycle."""

    snapshot: Snapshot

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> CurrentCluster:
        """Parse the platform's snapshot.

        Raises:
            InvalidRequest: this version cannot parse it.
        """
        try:
            return cls(snapshot=snapshot_from_json(fields))
        except InvalidSnapshot as wrong:
            raise _not_understood(wrong) from wrong

    @property
    def nodes(self) -> list[Node]:
        """The nodes; broken devices and cordoned nodes are assumed to have worked."""
        return [
            replace(node, schedulable=True, broken_devices=(), returning_devices=())
            for node in self.snapshot.nodes
        ]

    @property
    def policy(self) -> Policy:
        """The policy without `history_weight`: a replay starts without past usage (`left_out`)."""
        return replace(self.snapshot.policy, history_weight=0)

    @property
    def specs(self) -> list[ProjectSpec]:
        """The projects with their admins' settings, without members."""
        return [_spec(project) for project in self.snapshot.projects]

    @property
    def created(self) -> dict[str, int]:
        """Creation times of the projects, which break ties."""
        return {project.name: project.created for project in self.snapshot.projects}


def _spec(project: Project) -> ProjectSpec:
    table = project.quota_by_type
    quota = MilliGpu(0) if isinstance(project.quota, LeftOut) else project.quota
    if table is not None:
        quota = total(table)
    return ProjectSpec(
        name=project.name,
        parent=project.parent,
        quota=quota,
        quota_by_type=table,
        build_quota=project.build_quota,
        limit=project.limit,
        weight=project.weight,
        priority=project.priority,
        never_lent=project.never_lent,
        min_runtime=project.min_runtime,
        node_types_build=project.node_types.build,
        node_types_train=project.node_types.train,
    )


def left_out(
    past: Sequence[PastWorkload], rows: Sequence[TraceRow], today: CurrentCluster
) -> Iterator[str]:
    """Yield a sentence for each omission from `rows` and for each assumption."""
    yield "Nodes, projects and policy are those of today, whatever they were meanwhile."
    if missing := len(past) - len(rows):
        yield f"{_jobs(missing)} of projects that are not there: left out."
    if unknown := sum(row.request is None for row in rows):
        yield (
            f"{_jobs(unknown)} of before it was written down what is asked for: taken to ask for"
            " what they held, of any node, at the usual priority."
        )
    if elastic := sum(row.request is not None and _is_elastic(row.request) for row in rows):
        yield f"{_jobs(elastic)} elastic: taken to be as fast as they have GPUs."
    if today.snapshot.policy.history_weight:
        yield "The policy's history_weight counts for nothing: a replay begins without a past."
    if away := [n.name for n in today.snapshot.nodes if n.broken_devices or not n.schedulable]:
        yield f"Closed or with broken GPUs today, but taken to have worked: {', '.join(away)}."


def _jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"
