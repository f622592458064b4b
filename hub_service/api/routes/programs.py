"""Route of `runai exec`: runs a program in a workload's pod, beside the workload's own."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from runai.hub_service.api.auth.permissions import Action
from runai.hub_service.api.middleware.request_bodies import UniqueKeys
from runai.hub_service.api.services.event_stream import with_heartbeats
from runai.hub_service.api.services.platform import PlatformDep, Uid, WatcherDep
from runai.hub_service.model.cluster import OutputChunk, ProgramEnd
from runai.hub_service.model.records import WorkloadSpec, workload_id
from runai.hub_service.processes.shell_environment import RENDEZVOUS
from runai.hub_service.wire.errors import Conflict, NotFound
from runai.hub_service.wire.program_schemas import ExecPiece, ExecRequest

router = APIRouter(route_class=UniqueKeys, prefix="/workloads", tags=["workloads"])

_PIECES = {"application/x-ndjson": {"schema": ExecPiece.model_json_schema()}}


@router.post(
    "/{project}/{name}/exec",
    response_class=StreamingResponse,
    responses={200: {"description": "One JSON object for each piece", "content": _PIECES}},
)
async def execute(
    project: str,
    name: str,
    request: ExecRequest,
    platform: PlatformDep,
    watcher: WatcherDep,
    worker: Annotated[int, Query(ge=0)] = 0,
    uid: Uid = "",
) -> StreamingResponse:
    """Run a program in a worker's pod; stream its output and its exit code."""
    record = await platform.access(watcher.actor, Action.RUN_IN, workload_id(project, name), uid)
    if worker >= record.spec.workers:
        raise NotFound(
            f"{record.id} has no worker {worker}.", hint=f"It has {record.spec.workers}, from 0."
        )
    if platform.programs is None:
        raise Conflict(
            f"{record.id} is no pod: programs run beside it on its machine.",
            hint="`runai exec` there runs them, with its environment.",
            code="no_pod",
        )
    pieces = await platform.programs.execute(
        record.id,
        worker,
        _without_rendezvous(record.spec, request.command),
        request.stdin,
        uid=record.uid,
    )
    still_allowed = partial(watcher.check_allowed, Action.RUN_IN, record.id, record.uid)
    body = with_heartbeats(_json_lines(pieces), b"\n", still_allowed, platform.shutdown)
    return StreamingResponse(body, media_type="application/x-ndjson")


def _without_rendezvous(spec: WorkloadSpec, command: Sequence[str]) -> Sequence[str]:
    """Return the command without the variables by which it would join its worker's training."""
    if spec.workers == 1 and not spec.elastic:
        return command  # the image of a notebook may have no `env`
    return ["env", *(word for name in RENDEZVOUS for word in ("-u", name)), *command]


async def _json_lines(pieces: AsyncIterator[OutputChunk | ProgramEnd]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield _exec_piece(piece).model_dump_json(exclude_defaults=True).encode() + b"\n"


def _exec_piece(piece: OutputChunk | ProgramEnd) -> ExecPiece:
    if isinstance(piece, ProgramEnd):
        return ExecPiece.model_construct(exit_code=piece.exit_code, why=piece.why)
    if piece.is_error:
        return ExecPiece.model_construct(stderr=piece.data)
    return ExecPiece.model_construct(stdout=piece.data)
