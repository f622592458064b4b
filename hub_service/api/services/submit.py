"""Submit workloads: choose owner and project, build specs, store, wait for the decision."""

import asyncio
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from runai.hub_service.api.auth.permissions import Action, Actor, authorise, is_member, may
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.api.views.workload_views import Viewer
from runai.hub_service.clusters.states import user_actions
from runai.hub_service.clusters.workloads.cpu_job_queue import as_shown
from runai.hub_service.model.records import StateReason, WorkloadId, WorkloadRecord, WorkloadSpec
from runai.hub_service.model.workload_spec import Site, choose_project, specs_one_by_one
from runai.hub_service.processes.giving_way import Way
from runai.hub_service.scheduler.cycle import forecast
from runai.hub_service.scheduler.model.snapshot import Wait
from runai.hub_service.wire.errors import Conflict, Forbidden, InvalidRequest
from runai.hub_service.wire.schemas import SubmitReply, SubmitRequest

DECIDED_WITHIN_S = 2.0
"""Seconds to wait for the scheduler's decision; a slower cycle is not waited for."""
_FORESEEN = 10
"""Elements of a dry-run array with an expected start; readers need no more."""
DRAWN = 200
"""Elements of an array in the reply."""
AT_A_TIME = 50
"""Specs built before yielding to the event loop: some 3 ms of work."""
TRIES = 5
"""Attempts at a generated name while other submissions take it."""


async def submit(
    platform: Platform, actor: Actor, request: SubmitRequest, *, key: str = "", dry_run: bool
) -> SubmitReply:
    """Validate, store and describe; a dry run or an already stored `key` stores nothing.

    Raises:
        InvalidRequest, Forbidden, NotFound, Conflict: nothing was stored.
    """
    owner = await _owner(platform, actor, request)
    jobs = (request.array or 1) if request.kind == "job" else 0
    for attempt in range(TRIES):
        viewer = await platform.viewer(actor, progress_of=(), listed=False)
        if key and (stored := await platform.cluster.submitted(owner.name, key)):
            return _reply(viewer, stored, dry_run=False)
        # Before the specs are built: for thousands that alone takes a tenth of a second.
        platform.jobs.check(owner.name, jobs, await platform.cluster.unfinished_jobs(owner.name))
        taken = await platform.cluster.names()
        specs = await _specs(platform, viewer, owner, request, taken, key)
        if dry_run:
            return await _dry_run_reply(platform, viewer, specs)
        seen = platform.controller.changes.version
        try:
            unfinished = await platform.cluster.unfinished_jobs(owner.name)
            with platform.jobs.taken(owner.name, jobs, unfinished):
                added = await platform.cluster.submit(specs)
        except Conflict:
            if request.name is not None or attempt == TRIES - 1:
                raise
            continue
        return await _decided(platform, actor, [record.id for record in added], seen)
    raise AssertionError


async def _owner(platform: Platform, actor: Actor, request: SubmitRequest) -> Actor:
    if request.owner is None and not request.server and actor.kind == "user":
        if request.command is None and request.kind == "session":
            raise InvalidRequest(
                "A session without a command is started by JupyterHub alone.",
                hint="Give it a command, or start a server on the hub's page.",
            )
        return actor
    authorise(actor, Action.SUBMIT_FOR_OTHERS)
    if request.owner is None:
        raise InvalidRequest("owner is missing.", hint="The hub submits for a user.")
    return await platform.authenticator.person(request.owner)


async def _specs(
    platform: Platform,
    viewer: Viewer,
    owner: Actor,
    request: SubmitRequest,
    taken: Container[WorkloadId],
    key: str,
) -> list[WorkloadSpec]:
    world = viewer.world
    projects = {name: record.spec for name, record in world.projects.items()}
    yours = [name for name, spec in projects.items() if is_member(owner, spec)]
    project = choose_project(request, projects, yours)
    if not is_member(owner, project):
        raise Forbidden(
            f"{_subject(owner, viewer.actor)} not a member of project {project.name}.",
            hint=f"Projects to choose from: {', '.join(yours)}." if yours else "Ask its admin.",
            code="not_a_member",
        )
    authorise(owner, Action.SUBMIT, project)
    if isinstance(request.priority, int) and not may(owner, Action.SUBMIT_AT_ANY_PRIORITY, project):
        raise Forbidden(
            f"Priority {request.priority} is for admins of project {project.name}.",
            hint="Use low, normal or high.",
            code="priority",
        )
    _check_workdir(platform, request.workdir)
    most = (world.largest_device_mib, world.most_devices)
    site = Site(projects, taken, *most, platform.images, world.gpu_types)
    one_by_one = specs_one_by_one(request, user=owner.name, project=project, site=site, key=key)
    specs: list[WorkloadSpec] = []
    way = Way()
    while some := list(islice(one_by_one, AT_A_TIME)):
        if specs:
            await way.give()
        specs += some
    platform.cpu_jobs.refuse(specs[0])
    if request.name is not None:
        _check_names(specs, taken)
    return specs


def _check_workdir(platform: Platform, workdir: str) -> None:
    if workdir and not workdir.startswith("/"):
        raise InvalidRequest(
            f"The working directory {workdir} is not absolute.", hint="Begin it with a slash."
        )
    if workdir and not platform.workdir_exists(workdir):
        raise InvalidRequest(
            f"The working directory {workdir} does not exist.",
            hint="Name one that exists where jobs run (--workdir).",
            code="no_such_directory",
        )


def _check_names(specs: Sequence[WorkloadSpec], taken: Container[WorkloadId]) -> None:
    """Raise Conflict before anything is stored, on dry runs too; the cluster checks once more."""
    for spec in specs:
        if spec.id in taken:
            raise Conflict(
                f"{spec.project} already has a workload named {spec.name}.",
                hint=f"Choose another name, or delete it: runai delete {spec.name}"
                f" -p {spec.project}",
                code="name_taken",
            )


def _subject(owner: Actor, actor: Actor) -> str:
    return "You are" if owner is actor else f"{owner.name} is"


async def _decided(platform: Platform, actor: Actor, ids: Sequence[str], seen: int) -> SubmitReply:
    """Describe the stored workloads, with the next cycle's decision."""
    controller = platform.controller

    async def word() -> None:
        # If the store is remote, a cycle may have decided before this call returned.
        if controller.changes.version == seen or ids[0] not in controller.last.names:
            await controller.word.on(ids)

    with suppress(TimeoutError):
        async with asyncio.timeout(DECIDED_WITHIN_S):
            await word()
    viewer = await platform.viewer(actor, progress_of=(), listed=False)
    records = [await platform.cluster.workload(workload) for workload in ids]
    return _reply(viewer, records, dry_run=False)


async def _dry_run_reply(
    platform: Platform, viewer: Viewer, specs: Sequence[WorkloadSpec]
) -> SubmitReply:
    """Describe a dry run's workloads, with the scheduler's decision on the changed snapshot."""
    steps = [
        user_actions.submitted(spec, now=platform.clock(), checkpoint_dir="", log_dir="")
        for spec in specs
    ]
    rows = [step.row for step in steps if step.row is not None]
    # Only the controller observes the cluster: it would miss a change observed elsewhere.
    snapshot = (await platform.controller.cycle()).snapshot
    other, chosen = platform.cpu_jobs.otherwise(snapshot, rows)
    plan = await platform.controller.plan(other)
    starts = await asyncio.to_thread(forecast, other, plan, {row.id for row in rows[:_FORESEEN]})
    viewer = replace(viewer, world=replace(viewer.world, starts=starts))
    _, plan = as_shown(other, plan, chosen)
    waits = {d.workload: d for d in plan.decisions if isinstance(d, Wait)}
    tried = [_with_reason(row.record, waits.get(row.id)) for row in rows]
    return _reply(viewer, tried, dry_run=True)


def _with_reason(record: WorkloadRecord, wait: Wait | None) -> WorkloadRecord:
    if wait is None:
        return record
    why = wait.reason
    reason = StateReason(why.code, why.text, why.rule, why.for_ or "")
    return replace(record, reason=reason, position=wait.position)


def _reply(viewer: Viewer, records: Sequence[WorkloadRecord], *, dry_run: bool) -> SubmitReply:
    # All elements of an array wait for the same reason: report it once.
    waits: dict[str, WorkloadRecord] = {}
    for record in records:
        if record.reason is not None and not record.allocated:
            waits.setdefault(record.reason.text, record)
    notes = [f"{record.spec.name} waits: {text}" for text, record in waits.items()]
    asked = records[0].spec
    if asked.command is not None and not asked.gpus and not asked.gpu_memory_mib:
        notes.append(f"{asked.name} asks for no GPU; --gpus 1 asks for one")
    return SubmitReply(
        workloads=[*map(viewer.workload, records[:DRAWN])],
        array=records[0].id.rpartition("-")[0] if asked.array_index is not None else "",
        count=len(records),
        dry_run=dry_run,
        notes=notes,
    )
