"""Answer questions about the last cycle: reason, expected start, what-if plans.

The scheduler evaluates the controller's last snapshot, or a changed copy, outside any cycle and one
question at a time. Workloads that the caller must not see are neither named nor listed.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TypeVar

from runai.hub_service.api.auth.permissions import Actor, no_such_workload
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.api.views.start_views import start_view
from runai.hub_service.api.views.workload_views import Viewer
from runai.hub_service.clusters.states import user_actions
from runai.hub_service.clusters.states.state import StoredWorkload
from runai.hub_service.clusters.workloads.cpu_job_queue import as_shown
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec
from runai.hub_service.model.workload_spec import Site, known_project, workload_specs
from runai.hub_service.scheduler.cycle import explain
from runai.hub_service.scheduler.model.explanation import Change, EndWorkloads, SetProject
from runai.hub_service.scheduler.model.quantity import milli_gpus
from runai.hub_service.scheduler.model.snapshot import Plan, Reason, Snapshot, WorkerState, Workload
from runai.hub_service.scheduler.model.what_if import changed, serves
from runai.hub_service.wire.errors import InvalidRequest, Unavailable
from runai.hub_service.wire.explanation_schemas import (
    CounterfactualView,
    Effect,
    ExplanationView,
    HolderView,
    Outcome,
    PlanQuestion,
    ProjectEffect,
    SettingChange,
    WhatIf,
)
from runai.hub_service.wire.schemas import ReasonView

T = TypeVar("T")

WAIT_S = 10.0
"""Seconds to wait for the previous question; then the caller gets 503 and may retry."""
_WHOLE_NUMBERS = ("weight", "priority", "min_runtime")


async def explanation(platform: Platform, actor: Actor, record: WorkloadRecord) -> ExplanationView:
    """Return why a workload waits, what would help and when it starts."""
    viewer = await platform.viewer(actor)
    cycle = platform.controller.last
    may_know = _may_know(viewer)

    async with _one_at_a_time(platform):
        wait = await asyncio.to_thread(explain, cycle.snapshot, cycle.plan, record.id, may_know)
    view = ExplanationView(workload=record.id, at=_time(cycle.snapshot.now))
    if wait is None or wait.explanation is None:
        if record.position is not None:  # not in the scheduler's snapshot yet
            return view.model_copy(update={"reason": viewer.workload(record).reason})
        return view
    told = wait.explanation
    return view.model_copy(
        update={
            "reason": _reason(wait.reason, wait.position),
            "ahead": told.ahead,
            "holders": tuple(
                HolderView(
                    workload=holder.workload,
                    project=holder.project,
                    user=holder.user,
                    gpus=holder.gpus / 1000,
                    until=_maybe_time(holder.until),
                    is_estimated=holder.is_estimated,
                )
                for holder in told.holders
            ),
            "counterfactuals": tuple(
                CounterfactualView(text=c.text, protected_until=_maybe_time(c.protected_until))
                for c in told.counterfactuals
            ),
            "expected_start": start_view(told.expected_start),
        }
    )


async def what_if(platform: Platform, actor: Actor, question: PlanQuestion) -> WhatIf:
    """Return which workloads would start, stop or wait after a change; carries nothing out.

    Raises:
        InvalidRequest, NotFound: something in the question does not exist or has no valid value.
    """
    viewer = await platform.viewer(actor)
    cycle = platform.controller.last
    specs = _added_specs(platform, viewer, actor, question)
    changes: list[Change] = [*_settings(viewer, question), *_ends(viewer, question)]
    cpu_jobs = platform.cpu_jobs
    now, chosen = cpu_jobs.otherwise(cycle.snapshot)
    before = as_shown(now, cycle.plan, chosen)
    rows = _added(platform, specs)
    other, chosen = cpu_jobs.otherwise(changed(cycle.snapshot, changes), rows, question.end)
    async with _one_at_a_time(platform):
        plan = await platform.controller.plan(other)
    return _difference(viewer, before, as_shown(other, plan, chosen), specs)


@asynccontextmanager
async def _one_at_a_time(platform: Platform) -> AsyncIterator[None]:
    """Serialize questions, so that they do not take CPU time from the cycles."""
    try:
        async with asyncio.timeout(WAIT_S):
            await platform.questions.acquire()
    except TimeoutError:
        message = "Too many questions are being answered at the moment."
        raise Unavailable(message, hint="Ask again in a few seconds.") from None
    try:
        yield
    finally:
        platform.questions.release()


def _may_know(viewer: Viewer) -> Callable[[Workload], bool]:
    seen = {record.id for record in viewer.world.workloads if viewer.sees(record)}
    return lambda workload: workload.name in seen


# -- the question --------------------------------------------------------------------------------


def _added_specs(
    platform: Platform, viewer: Viewer, actor: Actor, question: PlanQuestion
) -> list[WorkloadSpec]:
    world = viewer.world
    projects = {name: record.spec for name, record in world.projects.items()}
    taken = {record.id for record in world.workloads}
    specs: list[WorkloadSpec] = []
    for request in question.add:
        if request.project is None:
            raise InvalidRequest("An added workload names no project.", hint="Name one: nlp.")
        project = known_project(request.project, projects, sorted(projects))
        most = (world.largest_device_mib, world.most_devices)
        site = Site(projects, taken, *most, images=True)
        if request.command is None:  # it will never run
            request = request.model_copy(update={"command": ["true"]})  # noqa: PLW2901
        new = workload_specs(request, user=actor.name, project=project, site=site)
        platform.cpu_jobs.refuse(new[0])
        taken |= {spec.id for spec in new}
        specs += new
    return specs


def _added(platform: Platform, specs: Sequence[WorkloadSpec]) -> list[StoredWorkload]:
    now = platform.clock()
    steps = [user_actions.submitted(spec, now=now, checkpoint_dir="", log_dir="") for spec in specs]
    return [step.row for step in steps if step.row is not None]


def _settings(viewer: Viewer, question: PlanQuestion) -> list[SetProject]:
    projects = {name: record.spec for name, record in viewer.world.projects.items()}
    for change in question.set:
        known_project(change.project, projects, sorted(projects))
    return [
        SetProject(project=change.project, setting=change.setting, value=_value(change))
        for change in question.set
    ]


def _value(change: SettingChange) -> int | None:
    value = change.value
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


def _ends(viewer: Viewer, question: PlanQuestion) -> list[EndWorkloads]:
    seen = {record.id for record in viewer.world.workloads if viewer.sees(record)}
    for workload in question.end:
        if workload not in seen:
            raise no_such_workload(workload)
    return [EndWorkloads(workloads=tuple(question.end))] if question.end else []


# -- the difference ------------------------------------------------------------------------------


def _difference(
    viewer: Viewer,
    now: tuple[Snapshot, Plan],
    then: tuple[Snapshot, Plan],
    added: Sequence[WorkloadSpec],
) -> WhatIf:
    (snapshot, plan), (other, new_plan) = now, then
    may_know = _may_know(viewer)
    mine = {spec.id for spec in added}
    before, after = _outcomes(snapshot, plan), _outcomes(other, new_plan)
    reasons = _reasons(new_plan)
    workloads = {w.name: w for w in (*snapshot.workloads, *other.workloads)}
    effects: list[Effect] = []
    others: Counter[str] = Counter()
    for name, workload in workloads.items():
        was, becomes = before.get(name), after.get(name, "gone")
        if was == becomes and name not in mine:
            continue
        if name not in mine and not may_know(workload):
            others[becomes] += 1
            continue
        effects.append(
            Effect(
                workload=name,
                project=workload.project,
                user=workload.user,
                is_added=name in mine,
                gpus=sum(worker.gpus for worker in workload.workers) / 1000,
                before=was,
                after=becomes,
                reason=reasons.get(name),
            )
        )
    return WhatIf(
        at=_time(snapshot.now),
        effects=effects,
        others=dict(sorted(others.items())),
        projects=_project_effects(plan, new_plan),
    )


def _outcomes(snapshot: Snapshot, plan: Plan) -> dict[str, Outcome]:
    told: dict[str, set[str]] = {}
    for decision in plan.decisions:
        told.setdefault(decision.workload, set()).add(decision.kind)
    return {w.name: _outcome(w, told.get(w.name, set()), plan) for w in snapshot.workloads}


def _outcome(workload: Workload, kinds: set[str], plan: Plan) -> Outcome:
    runs = any(worker.state is WorkerState.RUNNING for worker in workload.workers)
    if serves(plan, workload, at_once=True):
        for kind, outcome in _KEEPS_RUNNING.items():
            if kind in kinds:
                return outcome
        return "runs"
    if "move" in kinds:
        return "moves"
    if runs and "stop" in kinds:
        return "stops"
    return "starts later" if serves(plan, workload) else "waits"


_KEEPS_RUNNING: dict[str, Outcome] = {"start": "starts", "move": "moves", "resize": "resizes"}


def _reasons(plan: Plan) -> dict[str, ReasonView]:
    found: dict[str, ReasonView] = {}
    for decision in plan.decisions:
        match decision.kind:
            case "wait":
                found[decision.workload] = _reason(decision.reason, decision.position)
            case "stop" | "move" | "resize":
                found.setdefault(decision.workload, _reason(decision.reason, None))
            case _:
                pass
    return found


def _project_effects(plan: Plan, new_plan: Plan) -> list[ProjectEffect]:
    return [
        ProjectEffect(
            name=name,
            quota=None if share.quota is None else share.quota / 1000,
            fair_share_before=before.fair_share / 1000,
            fair_share=share.fair_share / 1000,
            allocated_before=before.allocated / 1000,
            allocated=share.allocated / 1000,
        )
        for name, share in new_plan.projects.items()
        if (before := plan.projects.get(name)) is not None
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
