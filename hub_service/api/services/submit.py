"""Submit workloads: choose owner and project, build specs, store, wait for the decision."""

import asyncio
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from runai.hub_service.api.auth.permissions import Action, Actor, authorise, is_member, may
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.api.views.viewer import Viewer
from runai.hub_service.clusters.states import user_actions
from runai.hub_service.clusters.workloads.snapshot_builder import with_rows
from runai.hub_service.model import arrays
from runai.hub_service.model.records import (
    StateReason,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.model.workload_spec import SubmissionContext, choose_project, workload_spec
from runai.hub_service.processes.accounts.submission_environment import environment_of_submission
from runai.hub_service.processes.accounts.umask import USUAL, umask_of_submission
from runai.hub_service.processes.user_account import UnixAccount
from runai.hub_service.scheduler.model.snapshot import Plan, Stop, Wait
from runai.hub_service.wire.errors import Conflict, Forbidden, InvalidRequest, NotFound
from runai.hub_service.wire.schemas import SubmitReply
from runai.hub_service.wire.workload_request import SubmitRequest

DECIDED_WITHIN_S = 2.0
"""Seconds to wait for the scheduler's decision; a slower cycle is not waited for."""
MAX_FORECAST_ELEMENTS = 10
"""Elements of a dry-run array with an expected start; readers need no more."""
MAX_LISTED_ELEMENTS = 200
"""Elements of an array in the reply."""
MAX_PLANNED_ELEMENTS = 1000
"""Elements of an array in a dry run's plan: more could not start at once."""
MAX_NAMED_WORKLOADS = 3
"""Workloads that a sentence names."""
UNCHECKED = "taints, volumes, admission"
"""Conditions of Kubernetes that a dry run does not check."""
TRIES = 5
"""Attempts at a generated name while other submissions take it."""


async def submit(
    platform: Platform, actor: Actor, request: SubmitRequest, *, key: str = "", dry_run: bool
) -> SubmitReply:
    """Validate, store and describe; a dry run or an already stored `key` stores nothing.

    Raises:
        InvalidRequest, Forbidden, NotFound, Conflict: nothing was stored.
    """
    owner = await _find_owner(platform, actor, request)
    jobs = (request.array or 1) if request.kind == "job" else 0
    for attempt in range(TRIES):
        viewer = await platform.viewer(actor, progress_of=(), listed=False)
        if key and (stored := await platform.cluster.submitted(owner.name, key)):
            return _reply(viewer, await _listed_records(platform, stored[0]), dry_run=False)
        unfinished = await platform.cluster.unfinished_jobs(owner.name)
        platform.job_limit.check(owner.name, jobs, unfinished)
        taken = await platform.cluster.names()
        spec = _build_spec(platform, viewer, owner, request, taken, key)
        account = None
        if platform.accounts is not None:
            account = await platform.accounts.account(owner.name)
            spec = _with_umask(viewer, request, spec, account)
        spec = _with_environment(platform, request, spec, account)
        if dry_run:
            return await _dry_run_reply(platform, viewer, spec)
        try:
            unfinished = await platform.cluster.unfinished_jobs(owner.name)
            with platform.job_limit.reserve(owner.name, jobs, unfinished):
                added = await platform.cluster.submit([spec])
        except Conflict:
            if request.name is not None or attempt == TRIES - 1:
                raise
            continue
        return await _reply_after_decision(platform, actor, added[0])
    raise AssertionError


async def _find_owner(platform: Platform, actor: Actor, request: SubmitRequest) -> Actor:
    """Return the owner of the workloads: the caller, or the user that the hub submits for."""
    if request.owner is None and not request.server and actor.kind == "user":
        if request.command is None and request.kind == "session":
            raise InvalidRequest(
                "A session without a command is started by JupyterHub alone.",
                hint="Give it a command, or start a server on the hub's page.",
            )
        return actor
    authorise(actor, Action.SUBMIT_ON_BEHALF)
    if request.owner is None:
        raise InvalidRequest("owner is missing.", hint="The hub submits for a user.")
    return await platform.authenticator.person(request.owner)


def _build_spec(
    platform: Platform,
    viewer: Viewer,
    owner: Actor,
    request: SubmitRequest,
    taken: Container[WorkloadId],
    key: str,
) -> WorkloadSpec:
    """Choose the project and build the specification; raise what its owner may not do."""
    read_model = viewer.read_model
    projects = {name: record.spec for name, record in read_model.projects.items()}
    own_projects = [name for name, spec in projects.items() if is_member(owner, spec)]
    project = choose_project(request, projects, own_projects)
    if not is_member(owner, project):
        names = ", ".join(own_projects)
        raise Forbidden(
            f"{_subject(owner, viewer.actor)} not a member of project {project.name}.",
            hint=f"Projects to choose from: {names}." if names else "Ask its admin.",
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
    largest_device = (read_model.largest_device_mib, read_model.most_devices)
    site = SubmissionContext(
        projects,
        taken,
        *largest_device,
        "kubernetes" if platform.images else "local",
        read_model.gpu_types,
        default_cpu=not platform.images,
        # Kubernetes may add a node that is larger; this machine's do not change.
        largest=None if platform.images else read_model.largest_node,
        largest_by_type=read_model.largest_by_type,
    )
    spec = workload_spec(request, user=owner.name, project=project, site=site, key=key)
    if request.name is not None:
        _check_names(spec, taken)
    return spec


def _with_umask(
    viewer: Viewer, request: SubmitRequest, spec: WorkloadSpec, account: UnixAccount
) -> WorkloadSpec:
    """Return the specification with the umask of its user, project or account."""
    is_server = spec.command is None
    umask = "" if is_server else umask_of_submission(request.umask, account.uid or 0)
    setting = viewer.read_model.projects[spec.project].spec.umask
    return replace(spec, umask=umask or setting or (account.umask if is_server else "") or USUAL)


def _with_environment(
    platform: Platform, request: SubmitRequest, spec: WorkloadSpec, account: UnixAccount | None
) -> WorkloadSpec:
    """Return the specification with the variables that a job takes from its submission."""
    taken_variables = environment_of_submission(
        None if request.no_environment else request.environment,
        image=request.image,
        in_pods=platform.images,
        uid=None if account is None else account.uid,
    )
    inherited = tuple(sorted(taken_variables.keys() - spec.env.keys()))
    return replace(spec, env={**taken_variables, **spec.env}, inherited=inherited)


def _check_workdir(platform: Platform, workdir: str) -> None:
    """Raise InvalidRequest unless jobs can start in the directory; "" is none."""
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


def _check_names(spec: WorkloadSpec, taken: Container[WorkloadId]) -> None:
    """Raise Conflict before anything is stored, on dry runs too; the cluster checks once more."""
    for workload in arrays.names_of(spec):
        if workload in taken:
            raise user_actions.refusal_of_used_name(workload)


def _subject(owner: Actor, actor: Actor) -> str:
    return "You are" if owner is actor else f"{owner.name} is"


async def _reply_after_decision(
    platform: Platform, actor: Actor, record: WorkloadRecord
) -> SubmitReply:
    """Describe a stored workload, with the scheduler's decision if it comes soon."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DECIDED_WITHIN_S):
            while record.state == "queued" and record.reason is None:
                record = await platform.cluster.wait(record.id, record)
    viewer = await platform.viewer(actor, progress_of=(), listed=False)
    return _reply(viewer, await _listed_records(platform, record), dry_run=False)


async def _listed_records(platform: Platform, record: WorkloadRecord) -> list[WorkloadRecord]:
    """Return the records of a reply: of an array, only its first elements."""
    record = await platform.cluster.workload(arrays.array_id(record))
    spec = record.spec
    if not spec.is_array:
        return [record]
    listed: list[WorkloadRecord] = []
    for index in range(min(MAX_LISTED_ELEMENTS, spec.array or 0)):
        with suppress(NotFound):  # deleted since
            listed.append(await platform.cluster.workload(arrays.element_id(spec.id, index)))
    return listed or [record]


async def _dry_run_reply(platform: Platform, viewer: Viewer, spec: WorkloadSpec) -> SubmitReply:
    """Describe a dry run's workloads, with the scheduler's decision on the changed snapshot."""
    rows = user_actions.rows_of(spec, now=platform.clock(), max_elements=MAX_PLANNED_ELEMENTS)
    # Only the controller observes the cluster: it would miss a change observed elsewhere.
    snapshot = (await platform.controller.cycle()).snapshot
    changed = with_rows(snapshot, rows)
    forecast_ids = [row.id for row in rows[:MAX_FORECAST_ELEMENTS]]
    plan, starts = await platform.decision_worker.what_if(changed, forecast_ids)
    viewer = replace(viewer, read_model=replace(viewer.read_model, starts=starts))
    waits = {d.workload: d for d in plan.decisions if isinstance(d, Wait)}
    if spec.is_array and waits:  # one line of the queue, at the place of its first one
        position = next((waits[row.id].position for row in rows if row.id in waits), 1)
        waits = {name: replace(wait, position=position) for name, wait in waits.items()}
    stopped = _stopped_by_beneficiary(plan)
    records = [_with_reason(r, waits.get(r.id), stopped) for r in rows[:MAX_LISTED_ELEMENTS]]
    reply = _reply(viewer, records, dry_run=True)
    if not platform.images:
        return reply
    # Kubernetes has further conditions, which the snapshot of a workload that is no Job lacks.
    notes = [*reply.notes, f"not checked here: {UNCHECKED}"]
    return reply.model_copy(update={"unchecked": UNCHECKED, "notes": notes})


def _stopped_by_beneficiary(plan: Plan) -> Mapping[str, Sequence[str]]:
    """Return the workloads that a plan stops, by the workload that benefits."""
    stopped: dict[str, dict[str, None]] = {}
    for decision in plan.decisions:
        if isinstance(decision, Stop) and decision.reason.for_ is not None:
            stopped.setdefault(decision.reason.for_, {})[decision.workload] = None
    return {gains: sorted(names) for gains, names in stopped.items()}


def _with_reason(
    record: WorkloadRecord, wait: Wait | None, stopped: Mapping[str, Sequence[str]]
) -> WorkloadRecord:
    """Return a record of a dry run with the plan's reason for its wait."""
    if wait is None:
        return record
    why = wait.reason
    text = why.text
    if why.code == "stopping":  # the plan's sentence says "reserved", which nothing is yet
        names = stopped.get(record.id, ("other work",))
        unnamed = len(names) - MAX_NAMED_WORKLOADS
        more = [f"{unnamed} more"] if unnamed > 0 else []
        names_text = " and ".join([*names[:MAX_NAMED_WORKLOADS], *more])
        text = f"{names_text} {'makes' if len(names) == 1 else 'make'} room for it"
    reason = StateReason(why.code, text, why.rule, why.for_ or "")
    return replace(record, reason=reason, position=wait.position)


def _reply(viewer: Viewer, records: Sequence[WorkloadRecord], *, dry_run: bool) -> SubmitReply:
    """Describe the workloads, and why they wait."""
    # All elements of an array wait for the same reason: report it once.
    waits: dict[str, WorkloadRecord] = {}
    for record in records:
        if record.reason is not None and not record.allocated:
            waits.setdefault(record.reason.text, record)
    notes = [f"{record.spec.name} waits: {text}" for text, record in waits.items()]
    if any(record.reason and record.reason.rule == "O4" for record in waits.values()):
        notes.append(
            "a limit in time (--time) that ends before then would let it start now:"
            " runai describe names one"
        )
    spec = records[0].spec
    if spec.command is not None and not spec.gpus and not spec.gpu_memory_mib:
        whole = arrays.array_id(records[0]).partition("/")[2] if spec.array else spec.name
        notes.append(f"{whole} asks for no GPU; --gpus 1 asks for one")
    return SubmitReply(
        workloads=[*map(viewer.workload, records[:MAX_LISTED_ELEMENTS])],
        array="" if spec.array is None else arrays.array_id(records[0]),
        count=spec.array or 1,
        dry_run=dry_run,
        notes=notes,
    )
