"""Routes of workloads: submit, list, describe, change, environment, logs."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import StreamingResponse

from runai.hub_service.api.auth.permissions import Action
from runai.hub_service.api.middleware.request_bodies import UniqueKeys
from runai.hub_service.api.services.event_stream import result_before_shutdown, with_heartbeats
from runai.hub_service.api.services.explanations import explanation
from runai.hub_service.api.services.platform import Caller, Platform, PlatformDep, Uid, WatcherDep
from runai.hub_service.api.services.submit import submit as submit_request
from runai.hub_service.api.views.viewer import version_of
from runai.hub_service.api.views.workload_pages import WorkloadListFilter, page_of
from runai.hub_service.clusters.states.user_actions import refusal_of_whole_array
from runai.hub_service.model.cluster import LogChunk
from runai.hub_service.model.records import Process, WorkloadRecord, workload_id
from runai.hub_service.model.workload_spec import check_limit
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.amounts import MOST_LINES
from runai.hub_service.wire.errors import Conflict, InvalidRequest, NotFound
from runai.hub_service.wire.explanation_schemas import ExplanationView
from runai.hub_service.wire.program_schemas import EnvironmentView, LogLine, ProcessReport
from runai.hub_service.wire.schemas import ScaleRequest, SubmitReply, WorkloadDetail, WorkloadPage
from runai.hub_service.wire.workload_request import SubmitRequest

router = APIRouter(route_class=UniqueKeys, prefix="/workloads", tags=["workloads"])

LONGEST_POLL_S = 60.0
LINES_AT_ONCE = 1000
MOST_ON_A_PAGE = 2000


@router.get("")
async def list_workloads(
    platform: PlatformDep,
    caller: Caller,
    list_filter: Annotated[WorkloadListFilter, Depends()],
    limit: Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE)] = 200,
    after: Annotated[str, Query(alias="continue")] = "",
) -> WorkloadPage:
    """List a page of the workloads that the caller may see, oldest first, with counts of all."""
    viewer = await platform.viewer(caller)
    return page_of(viewer, list_filter.records(viewer), limit=limit, after=after)


@router.post("", status_code=201)
async def submit(
    request: SubmitRequest,
    platform: PlatformDep,
    caller: Caller,
    *,
    dry_run: bool = False,
    idempotency_key: Annotated[str, Header(pattern=r"^([A-Za-z0-9_-]{8,64})?$")] = "",
) -> SubmitReply:
    """Queue a job or a session; a dry run or a repeated idempotency key stores nothing."""
    return await submit_request(platform, caller, request, key=idempotency_key, dry_run=dry_run)


@router.get("/{project}/{name}")
async def describe(
    project: str,
    name: str,
    platform: PlatformDep,
    caller: Caller,
    uid: Uid = "",
    changed_from: str | None = None,
    timeout: Annotated[float, Query(ge=0, le=LONGEST_POLL_S)] = 30.0,  # noqa: ASYNC109  the client's
) -> WorkloadDetail:
    """Return a workload; with `changed_from`, as soon as its version differs (long poll)."""
    record = await platform.access(caller, Action.READ_WORKLOAD, workload_id(project, name), uid)
    if changed_from is not None:
        await _wait_for_change(platform, record, changed_from, timeout)
        # The caller's permission may be another now, and so may the workload of that name.
        record = await platform.access(caller, Action.READ_WORKLOAD, record.id, uid)
        return await _detail(platform, caller, record)
    account = await platform.account_note(record)
    return (await _detail(platform, caller, record)).model_copy(update={"account": account})


@router.get("/{project}/{name}/explanation")
async def explain(
    project: str, name: str, platform: PlatformDep, caller: Caller, uid: Uid = ""
) -> ExplanationView:
    """Return what a waiting workload waits for, what would help, and when it starts."""
    record = await platform.access(caller, Action.SEE_WORKLOAD, workload_id(project, name), uid)
    return await explanation(platform, caller, record)


@router.delete("/{project}/{name}", status_code=202)
async def delete(
    project: str, name: str, platform: PlatformDep, caller: Caller, uid: Uid = ""
) -> None:
    """Stop a workload, and delete it when its processes have ended."""
    record = await platform.access(caller, Action.CHANGE_WORKLOAD, workload_id(project, name), uid)
    await platform.cluster.delete(record.id, by=caller.name, uid=record.uid)


@router.post("/{project}/{name}/suspend")
async def suspend(
    project: str, name: str, platform: PlatformDep, caller: Caller, uid: Uid = ""
) -> WorkloadDetail:
    """Remove a job from the queue, and stop it if it runs."""
    record = await platform.access(caller, Action.CHANGE_WORKLOAD, workload_id(project, name), uid)
    suspended = await platform.cluster.suspend(record.id, by=caller.name, uid=record.uid)
    return await _detail(platform, caller, suspended)


@router.post("/{project}/{name}/resume")
async def resume(
    project: str, name: str, platform: PlatformDep, caller: Caller, uid: Uid = ""
) -> WorkloadDetail:
    """Put a suspended job back into its place in the queue."""
    record = await platform.access(caller, Action.REQUEST_GPUS, workload_id(project, name), uid)
    resumed = await platform.cluster.resume(record.id, by=caller.name, uid=record.uid)
    return await _detail(platform, caller, resumed)


@router.post("/{project}/{name}/scale")
async def scale(
    project: str,
    name: str,
    request: ScaleRequest,
    platform: PlatformDep,
    caller: Caller,
    uid: Uid = "",
) -> WorkloadDetail:
    """Change the number of workers of an elastic job, which keeps running."""
    record = await platform.access(caller, Action.CHANGE_WORKLOAD, workload_id(project, name), uid)
    spec = record.spec
    if (request.workers or 0) > spec.workers or (request.min_workers or 0) > spec.min_workers:
        await platform.access(caller, Action.REQUEST_GPUS, record.id)
    if request.workers is None and request.min_workers is None:
        raise InvalidRequest(
            "No number of workers is given.", hint="Give workers, min_workers or both."
        )
    if request.min_workers is not None:
        projects = await platform.project_specs()
        needed = MilliGpu(spec.gpus * request.min_workers)
        if (project_spec := projects.get(spec.project)) is not None:
            check_limit(needed, project_spec, projects)
    scaled = await platform.cluster.scale(
        record.id,
        workers=request.workers,
        min_workers=request.min_workers,
        by=caller.name,
        uid=record.uid,
    )
    return await _detail(platform, caller, scaled)


@router.post("/{project}/{name}/keep")
async def keep(
    project: str, name: str, platform: PlatformDep, caller: Caller, uid: Uid = ""
) -> WorkloadDetail:
    """Keep idle GPUs for 30 more minutes; at most twice until they are used again."""
    record = await platform.access(caller, Action.REQUEST_GPUS, workload_id(project, name), uid)
    await platform.idle.extend(record, by=caller.name)
    return await _detail(platform, caller, record)


@router.post("/{project}/{name}/release")
async def release(
    project: str, name: str, platform: PlatformDep, caller: Caller, uid: Uid = ""
) -> WorkloadDetail:
    """Release a session's GPUs: its programs on them end, the session stays."""
    record = await platform.access(caller, Action.CHANGE_WORKLOAD, workload_id(project, name), uid)
    await platform.idle.release(record, by=caller.name)
    return await _detail(platform, caller, record)


@router.post("/{project}/{name}/regain")
async def regain(
    project: str, name: str, platform: PlatformDep, caller: Caller, uid: Uid = ""
) -> WorkloadDetail:
    """Request a released session's GPUs again; the session keeps running while it waits."""
    record = await platform.access(caller, Action.REQUEST_GPUS, workload_id(project, name), uid)
    if record.released is None and platform.idle.releasing(record):
        raise Conflict(
            f"{record.id} is still giving its GPUs back.",
            hint="Ask for them again in a moment.",
            code="being_released",
        )
    queued = await platform.cluster.regain(record.id, by=caller.name, uid=record.uid)
    return await _detail(platform, caller, queued)


@router.put("/{project}/{name}/process")
async def attach(
    project: str,
    name: str,
    report: ProcessReport,
    platform: PlatformDep,
    caller: Caller,
    uid: Uid = "",
) -> WorkloadDetail:
    """Register the process of a granted session."""
    record = await platform.access(caller, Action.ATTACH, workload_id(project, name), uid)
    process = Process(report.pid, report.created)
    attached = await platform.cluster.attach(record.id, process, uid=record.uid)
    return await _detail(platform, caller, attached)


@router.get("/{project}/{name}/environment")
async def environment(
    project: str,
    name: str,
    platform: PlatformDep,
    caller: Caller,
    worker: Annotated[int, Query(ge=0)] = 0,
    uid: Uid = "",
) -> EnvironmentView:
    """Return the environment that gives a worker its devices."""
    workload = workload_id(project, name)
    record = await platform.access(caller, Action.READ_ENVIRONMENT, workload, uid)
    if record.released is None and platform.idle.releasing(record):
        raise Conflict(
            f"{record.id} is about to give its GPUs to others.",
            hint="`runai regain` asks for them again.",
            code="no_allocation",
        )
    worker_environment = await platform.cluster.environment(record.id, worker, uid=record.uid)
    return EnvironmentView(
        environment=dict(worker_environment.variables),
        workdir=worker_environment.workdir,
        umask=worker_environment.umask,
    )


_LINES = {"application/x-ndjson": {"schema": LogLine.model_json_schema()}}


@router.get(
    "/{project}/{name}/logs",
    response_class=StreamingResponse,
    responses={200: {"description": "One JSON object for each line", "content": _LINES}},
)
async def logs(
    project: str,
    name: str,
    platform: PlatformDep,
    watcher: WatcherDep,
    worker: Annotated[int | None, Query(ge=0)] = None,
    tail: Annotated[int | None, Query(ge=0, le=MOST_LINES)] = None,
    uid: Uid = "",
    *,
    follow: bool = False,
    parts: bool = False,
) -> StreamingResponse:
    """Stream the workers' output, one JSON object for each line or, if asked, each part."""
    workload = workload_id(project, name)
    record = await platform.access(watcher.actor, Action.READ_WORKLOAD, workload, uid)
    if record.spec.is_array:
        raise refusal_of_whole_array(record)
    if worker is not None and worker >= record.spec.workers:
        raise NotFound(
            f"{record.id} has no worker {worker}.", hint=f"It has {record.spec.workers}, from 0."
        )
    still_allowed = partial(watcher.check_allowed, Action.READ_WORKLOAD, record.id, record.uid)
    chunks = platform.cluster.logs(
        record.id, worker=worker, tail=tail, follow=follow, parts=parts, uid=record.uid
    )
    body = with_heartbeats(_log_lines(chunks), b"\n", still_allowed, platform.shutdown)
    return StreamingResponse(body, media_type="application/x-ndjson")


async def _log_lines(chunks: AsyncIterator[LogChunk]) -> AsyncIterator[bytes]:
    """Yield each line of output as a line of JSON."""
    async for chunk in chunks:
        lines = (chunk.lines or str(chunk.missing).encode()).removesuffix(b"\n").split(b"\n")
        # A chunk may be a line of a megabyte, or a hundred thousand empty lines.
        for begin in range(0, len(lines), LINES_AT_ONCE):
            yield b"".join(
                LogLine(
                    worker=chunk.worker,
                    attempt=chunk.attempt,
                    text=line.decode(errors="replace"),
                    missing=chunk.missing,
                    part=chunk.is_part,
                )
                .model_dump_json(exclude_defaults=True)
                .encode()
                + b"\n"
                for line in lines[begin : begin + LINES_AT_ONCE]
            )


async def _wait_for_change(
    platform: Platform, record: WorkloadRecord, known_version: str, within_s: float
) -> None:
    """Wait until the workload has another version, the time is over or the service ends."""
    deadline = asyncio.get_running_loop().time() + within_s
    while version_of(record) == known_version:
        left_s = deadline - asyncio.get_running_loop().time()
        change = platform.cluster.wait(record.id, record)
        changed = await result_before_shutdown(platform.shutdown, change, left_s)
        if changed is None:
            return
        record = changed


async def _detail(platform: Platform, caller: Caller, record: WorkloadRecord) -> WorkloadDetail:
    history = await platform.cluster.history(record.id)  # at once: later another may have the name
    viewer = await platform.viewer(caller, progress_of=(record.id,), listed=False)
    return viewer.detail(record, history)
