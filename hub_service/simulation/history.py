"""The platform's own past as a trace: what ran, on which nodes, under which quotas and policy.

Turns what the API says into rows, nodes and projects, and says what of the past nobody knows any
more. A duration is the time for which a workload held GPUs, so a job that still runs counts with
what it has done. Knows no HTTP; called by the command, which asks the platform.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.model.request_codec import workload_of
from runai.hub_service.scheduler.model.fields import InvalidSnapshot
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
from runai.hub_service.simulation.policies import PolicyName
from runai.hub_service.simulation.traces import TraceRow
from runai.hub_service.wire.amounts import LONGEST_S, seconds
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import PastWorkload

RESUME_S: Final = 60
"""What a pause is taken to cost a job: to save, to start, and to read its checkpoint."""

EVERY_S: Final = 1
"""The platform decides a moment after each change; a replay knows whole seconds."""


def seconds_of(length: str) -> int:
    """Read a length of time, with its unit: whoever writes 30 hardly means seconds.

    >>> seconds_of("30d"), seconds_of("12h")
    (2592000, 43200)

    Raises:
        InvalidRequest: it is none.
    """
    try:
        found = 0 if length.strip().isdecimal() else seconds(length)
    except ValueError:
        found = 0
    if not isinstance(found, int) or not 0 < found <= LONGEST_S:
        raise InvalidRequest(f"{length!r} is no length of time.", hint="Write 30d, 12h or 90m.")
    return found


def rows_of(past: Iterable[PastWorkload]) -> list[TraceRow]:
    """Make a trace of what ran, in order of submission.

    Raises:
        InvalidRequest: this version does not understand what a workload asked for.
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
    asked, gpus = None, _milli(past.gpus)
    # What its pauses cost is in the time for which it held GPUs; a replay has pauses of its own.
    ran_s = past.held_s - RESUME_S * max(0, past.starts - 1)
    if past.asked is not None:
        asked = replace(
            workload_of(name, past.project, past.asked),
            user=past.user,
            submitted=int(past.submitted.timestamp()),
        )
        if wanted := sum(worker.gpus * worker.devices_wanted for worker in asked.workers):
            gpus = wanted
        if _may_change(asked) and wanted:
            # It has done as much as its GPUs have; of one with all of them as long as it takes.
            ran_s *= past.gpus * WHOLE_GPU / wanted
    return TraceRow(
        job=name,
        project=past.project,
        submit_s=int(past.submitted.timestamp()),
        gpus=gpus,
        duration_s=max(1, round(ran_s)),
        kind=past.kind if asked is None else asked.kind,
        user=past.user,
        checkpoint_cost_s=RESUME_S,
        asked=asked,
    )


def _not_understood(wrong: InvalidSnapshot) -> InvalidRequest:
    return InvalidRequest(
        f"The platform's past cannot be read: {wrong}.",
        hint="Is this client as new as the platform?",
    )


def _may_change(asked: Workload) -> bool:
    """Tell whether it holds now more, now less."""
    return asked.gpus_max is not None or asked.minimum < len(asked.workers)


def _milli(gpus: float) -> int:
    """Take an average of what was held for the request that it came from."""
    if gpus < 1:
        return max(1, round(gpus * WHOLE_GPU))
    return WHOLE_GPU * round(gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Today:
    """The cluster, its projects and the policy in force, as the platform's last cycle had them."""

    snapshot: Snapshot

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Today:
        """Read what the platform says of itself.

        Raises:
            InvalidRequest: this version does not understand it.
        """
        try:
            return cls(snapshot=snapshot_from_json(told))
        except InvalidSnapshot as wrong:
            raise _not_understood(wrong) from wrong

    @property
    def nodes(self) -> list[Node]:
        """Give the nodes; what is broken or closed today is taken to have worked."""
        return [replace(node, schedulable=True, broken_devices=()) for node in self.snapshot.nodes]

    @property
    def policy(self) -> Policy:
        """Give the policy; nobody had used anything when a replay begins (`left_out`)."""
        return replace(self.snapshot.policy, history_weight=0)

    @property
    def policy_name(self) -> PolicyName:
        """Say which of the policies that are compared the platform has."""
        moves = "consolidate" in self.snapshot.policy.phases
        return "quota+consolidate" if moves else "quota"

    @property
    def specs(self) -> list[ProjectSpec]:
        """Give the projects as their admins set them, members left out."""
        return [_spec(project) for project in self.snapshot.projects]

    @property
    def created(self) -> dict[str, int]:
        """Give the ages of the projects, which break ties."""
        return {project.name: project.created for project in self.snapshot.projects}


def _spec(project: Project) -> ProjectSpec:
    return ProjectSpec(
        name=project.name,
        parent=project.parent,
        quota=MilliGpu(0) if isinstance(project.quota, LeftOut) else project.quota,
        build_quota=project.build_quota,
        limit=project.limit,
        weight=project.weight,
        priority=project.priority,
        never_lent=project.never_lent,
        min_runtime=project.min_runtime,
        node_types_build=project.node_types.build,
        node_types_train=project.node_types.train,
    )


def left_out(past: Sequence[PastWorkload], rows: Sequence[TraceRow], today: Today) -> Iterator[str]:
    """Yield what of the past `rows` do not have, and what is taken for known, a sentence each."""
    yield "Nodes, projects and policy are those of today, whatever they were meanwhile."
    if gone := len(past) - len(rows):
        yield f"{_jobs(gone)} of projects that are not there: left out."
    if unknown := sum(row.asked is None for row in rows):
        yield (
            f"{_jobs(unknown)} of before it was written down what is asked for: taken to ask for"
            " what they held, of any node, at the usual priority."
        )
    if elastic := sum(row.asked is not None and _may_change(row.asked) for row in rows):
        yield f"{_jobs(elastic)} elastic: taken to be as fast as they have GPUs."
    if today.snapshot.policy.history_weight:
        yield "The policy's history_weight counts for nothing: a replay begins without a past."
    if away := [n.name for n in today.snapshot.nodes if n.broken_devices or not n.schedulable]:
        yield f"Closed or with broken GPUs today, but taken to have worked: {', '.join(away)}."


def _jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"
