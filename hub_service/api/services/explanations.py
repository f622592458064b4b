"""Answer questions about the last cycle: reason, expected start, what-if plans.

The decision worker evaluates its last snapshot, or a changed copy of it, in a child beside the
cycles: one question at a time, within a minute. Workloads that the caller must not see are neither
named nor listed.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from runai.hub_service.api.auth.permissions import Actor, no_such_workload
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.api.views.start_forecasts import start_view
from runai.hub_service.api.views.viewer import Viewer
from runai.hub_service.clusters.states import user_actions
from runai.hub_service.clusters.workloads.snapshot_builder import workload_for_core
from runai.hub_service.controller.decision_messages import Compare, VisibleNames
from runai.hub_service.model import arrays
from runai.hub_service.model.gpu_types import checked_table
from runai.hub_service.model.project_changes import changed_project
from runai.hub_service.model.records import (
    ProjectSpec,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.model.workload_spec import SubmissionContext, find_project, workload_spec
from runai.hub_service.scheduler import (
    OutcomeChange,
    OutcomeDifference,
    Reason,
    SetProject,
    Workload,
)
from runai.hub_service.scheduler.model.quantity import milli_gpus
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.explanation_schemas import (
    CounterfactualView,
    Effect,
    ExplanationView,
    HolderView,
    PlanQuestion,
    ProjectEffect,
    SettingChange,
    WhatIf,
)
from runai.hub_service.wire.schemas import ReasonView

_WHOLE_NUMBERS = ("weight", "priority", "min_runtime")


async def explanation(platform: Platform, actor: Actor, record: WorkloadRecord) -> ExplanationView:
    """Return why a workload waits, what would help and when it starts."""
    viewer = await platform.viewer(actor)
    explained = await _next_of_array(platform, record)
    answer = await platform.decision_worker.explain(explained, _visible_names(viewer))
    view = ExplanationView(workload=record.id, at=_time(answer.now))
    wait = answer.wait
    if wait is None or wait.explanation is None:
        if record.position is not None:  # not in the scheduler's snapshot yet
            return view.model_copy(update={"reason": viewer.workload(record).reason})
        return view
    details = wait.explanation
    return view.model_copy(
        update={
            "reason": _reason(wait.reason, wait.position),
            "ahead": details.ahead,
            "holders": tuple(
                HolderView(
                    workload=holder.workload,
                    project=holder.project,
                    user=holder.user,
                    gpus=holder.gpus / 1000,
                    until=_maybe_time(holder.until),
                    is_estimated=holder.is_estimated,
                )
                for holder in details.holders
            ),
            "counterfactuals": tuple(
                CounterfactualView(text=c.text, protected_until=_maybe_time(c.protected_until))
                for c in details.counterfactuals
            ),
            "expected_start": start_view(details.expected_start),
        }
    )


async def what_if(platform: Platform, actor: Actor, question: PlanQuestion) -> WhatIf:
    """Return which workloads would start, stop or wait after a change; carries nothing out.

    Raises:
        InvalidRequest, NotFound: something in the question does not exist or has no valid value.
    """
    viewer = await platform.viewer(actor)
    visible = _visible_names(viewer)
    specs = _added_specs(platform, viewer, actor, question)
    compare = Compare(
        visible,
        added=_added(platform, specs),
        ended=_ended(visible, question),
        settings=tuple(_settings(viewer, question)),
        tables=_tables(viewer, question),
    )
    return _what_if_view(await platform.decision_worker.compare(compare))


async def _next_of_array(platform: Platform, record: WorkloadRecord) -> WorkloadId:
    """Return the workload to explain: for what waits in an array, the array's next element."""
    if record.spec.array is None:
        return record.id
    whole = await platform.cluster.workload(arrays.array_id(record))
    index = record.spec.array_index
    if whole.left and (index is None or arrays.has(whole.left, index)):
        return arrays.element_id(whole.id, whole.left[0][0])
    return record.id


def _visible_names(viewer: Viewer) -> VisibleNames:
    """Return the workloads that the caller may see."""
    records = [record for record in viewer.read_model.workloads if viewer.may_see(record)]
    of_arrays = {f"{arrays.array_id(r)}-" for r in records if r.spec.array is not None}
    return frozenset(record.id for record in records) | of_arrays


# -- the question --------------------------------------------------------------------------------


def _added_specs(
    platform: Platform, viewer: Viewer, actor: Actor, question: PlanQuestion
) -> list[WorkloadSpec]:
    """Build the specifications of the added workloads; any project may be named."""
    read_model = viewer.read_model
    projects = {name: record.spec for name, record in read_model.projects.items()}
    taken = {record.id for record in read_model.workloads}
    specs: list[WorkloadSpec] = []
    for request in question.add:
        if request.project is None:
            raise InvalidRequest("An added workload names no project.", hint="Name one: nlp.")
        project = find_project(request.project, projects, sorted(projects))
        largest_device = (read_model.largest_device_mib, read_model.most_devices)
        site = SubmissionContext(
            projects, taken, *largest_device, executor="kubernetes", default_cpu=not platform.images
        )
        if request.command is None:  # it will never run
            request = request.model_copy(update={"command": ["true"]})  # noqa: PLW2901
        new = workload_spec(request, user=actor.name, project=project, site=site)
        taken.add(new.id)
        specs.append(new)
    return specs


def _added(platform: Platform, specs: Sequence[WorkloadSpec]) -> tuple[Workload, ...]:
    """Return the added workloads as the scheduler sees them, all elements of arrays."""
    now = platform.clock()
    rows = (
        row
        for spec in specs
        for row in user_actions.rows_of(spec, now=now, max_elements=spec.array or 1)
    )
    return tuple(w for row in rows if (w := workload_for_core(row)) is not None)


def _settings(viewer: Viewer, question: PlanQuestion) -> list[SetProject]:
    """Return the changed settings, except quotas by GPU type."""
    projects = {name: record.spec for name, record in viewer.read_model.projects.items()}
    for change in question.set:
        find_project(change.project, projects, sorted(projects))
    return [
        SetProject(project=change.project, setting=change.setting, value=_value(change))
        for change in question.set
        if not isinstance(change.value, dict)
    ]


def _tables(viewer: Viewer, question: PlanQuestion) -> dict[str, dict[str, Any]]:
    """Return the fields of projects with quotas by GPU type."""
    types = viewer.read_model.gpu_types
    tables: dict[str, dict[str, Any]] = {}
    for change in question.set:
        if isinstance(change.value, dict):
            spec = changed_project(ProjectSpec(change.project), {"quota": change.value})
            table = checked_table(spec.quota_by_type or {}, types)
            tables[change.project] = {"quota": spec.quota, "quota_by_type": table}
    return tables


def _value(change: SettingChange) -> int | None:
    """Convert a setting's value: GPUs to milli-GPU; null is the setting's default."""
    value = change.value
    assert not isinstance(value, dict), "tables are set by `_tables`"
    if change.setting in _WHOLE_NUMBERS:
        if value is None and change.setting == "weight":
            return None
        if value is None or value != int(value):
            raise InvalidRequest(
                f"{change.project}.{change.setting} cannot be {value}.",
                hint="Give a whole number.",
            )
        return int(value)
    if value is None:
        return 0 if change.setting == "never_lent" else None
    return milli_gpus(float(value))


def _ended(visible: VisibleNames, question: PlanQuestion) -> VisibleNames:
    """Return the workloads that the question ends; an array's name stands for its elements."""
    for workload in question.end:
        array_and_index = arrays.split_id(workload)
        of_array = array_and_index is not None and f"{array_and_index[0]}-" in visible
        if not {workload, f"{workload}-"} & visible and not of_array:
            raise no_such_workload(workload)
    wholes = {f"{workload}-" for workload in question.end}
    return frozenset(question.end) | (wholes & visible)


# -- the answer ----------------------------------------------------------------------------------


def _what_if_view(difference: OutcomeDifference) -> WhatIf:
    return WhatIf(
        at=_time(difference.now),
        effects=[_effect(effect) for effect in difference.effects],
        others=dict(difference.hidden_counts),
        projects=_project_effects(difference),
    )


def _effect(effect: OutcomeChange) -> Effect:
    workload, reason = effect.workload, effect.reason
    return Effect(
        workload=workload.name,
        project=workload.project,
        user=workload.user,
        is_added=effect.is_added,
        gpus=sum(worker.gpus for worker in workload.workers) / 1000,
        before=effect.before,
        after=effect.after,
        reason=None if reason is None else _reason(reason, effect.position),
    )


def _project_effects(difference: OutcomeDifference) -> list[ProjectEffect]:
    """Return the projects' figures before and after, without added and removed projects."""
    return [
        ProjectEffect(
            name=name,
            quota=None if share.quota is None else share.quota / 1000,
            fair_share_before=before.fair_share / 1000,
            fair_share=share.fair_share / 1000,
            allocated_before=before.allocated / 1000,
            allocated=share.allocated / 1000,
        )
        for name, share in difference.projects.items()
        if (before := difference.projects_before.get(name)) is not None
    ]


def _reason(reason: Reason, position: int | None) -> ReasonView:
    return ReasonView(
        code=reason.code,
        rule=reason.rule,
        text=reason.text,
        gains=reason.for_ or "",
        position=position,
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _maybe_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else _time(seconds)
