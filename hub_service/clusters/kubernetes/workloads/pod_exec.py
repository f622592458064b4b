"""Extra programs in a workload's pod: `runai exec` by the exec subresource.

Input and output travel in numbered channels of one WebSocket (v5.channel.k8s.io, since 1.30); the
last message has the exit status. The API authorizes users; the chart grants our right
(`jobs.exec`).
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from http import HTTPStatus

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Channels, Object
from runai.hub_service.clusters.kubernetes.events.pod_conditions import pod_path
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.model.cluster import OutputChunk, ProgramEnd
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.wire.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    RunaiError,
    Unavailable,
)

STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
END_OF_STDIN = bytes((255, STDIN))
MOST_AT_ONCE = 65_536
"""Maximum bytes of input in one message; kubelets refuse larger ones."""
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
MOST_COMMAND_BYTES = 32_768
"""The command is part of the URL, and proxies limit its length."""


class PodExec:
    """Implementation of `base.Programs` for pods."""

    def __init__(
        self, api: Api, pods_of: Callable[[WorkloadId, str], Awaitable[Sequence[Pod]]]
    ) -> None:
        """Run programs in the pods that `pods_of` returns for a workload and its uid."""
        self._api = api
        self._pods_of = pods_of

    async def execute(
        self,
        workload: WorkloadId,
        worker: int,
        command: Sequence[str],
        stdin: bytes,
        *,
        uid: str = "",
    ) -> AsyncIterator[OutputChunk | ProgramEnd]:
        """Start a program in a worker's pod; yield its output and its exit status."""
        if sum(len(part.encode()) for part in command) > MOST_COMMAND_BYTES:
            raise InvalidRequest(
                f"The command has more than the {MOST_COMMAND_BYTES} bytes that Kubernetes takes.",
                hint="Hand a program on as its input: python - < program.py.",
                code="too_large",
            )
        pod = _running_pod(await self._pods_of(workload, uid), workload, worker)
        query = [("command", part) for part in command]
        query += [(name, "true") for name in ("stdin", "stdout", "stderr")]
        try:
            found = await self._api.get(pod_path(pod))
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise _refusal(workload, error) from error
            raise _missing_pod(workload) from error
        if found["metadata"]["uid"] != pod.uid:  # another pod, made again by the same name
            raise _missing_pod(workload)
        query.append(("container", _container(found)))
        try:
            channels = await self._api.channels(pod_path(pod, "exec"), query)
        except ApiError as error:
            raise _refusal(workload, error) from error
        return _run(channels, stdin)


async def _run(channels: Channels, stdin: bytes) -> AsyncIterator[OutputChunk | ProgramEnd]:
    async with channels:
        for start in range(0, len(stdin), MOST_AT_ONCE):
            await channels.send(bytes((STDIN,)) + stdin[start : start + MOST_AT_ONCE])
        await channels.send(END_OF_STDIN)
        async for message in channels:
            channel, data = message[0], message[1:]
            if channel == STATUS:
                yield _ended(json.loads(data))
                return
            if data and channel in (STDOUT, STDERR):
                yield OutputChunk(data, is_error=channel == STDERR)


def _ended(status: Object) -> ProgramEnd:
    """Return the exit status; 127, as in a shell, if the program did not start."""
    if status.get("status") == "Success":
        return ProgramEnd(0)
    causes = status.get("details", {}).get("causes", ())
    code = next((c["message"] for c in causes if c.get("reason") == "ExitCode"), "")
    if code.isdecimal():
        return ProgramEnd(int(code))
    return ProgramEnd(127, str(status.get("message", "it could not be run")))


def _running_pod(pods: Sequence[Pod], workload: WorkloadId, worker: int) -> Pod:
    for pod in pods:
        if (pod.index or 0) == worker and pod.is_up and pod.deleted is None:
            return pod
    raise Conflict(
        f"Worker {worker} of {workload} does not run.",
        hint="A program can be run beside it only while it does.",
        code="not_running",
    )


def _missing_pod(workload: WorkloadId) -> NotFound:
    return NotFound(f"The pod of {workload} is gone.", hint="Look again.")


def _container(found: Object) -> str:
    """Return the container that kubectl would choose, but prefer a notebook server to sidecars."""
    names = [container["name"] for container in found["spec"]["containers"]]
    preferred: str = found["metadata"].get("annotations", {}).get(DEFAULT_CONTAINER, "")
    return next((name for name in (preferred, "notebook") if name in names), names[0])


def _refusal(workload: WorkloadId, error: ApiError) -> RunaiError:
    if error.status == HTTPStatus.FORBIDDEN:
        return Conflict(
            f"The platform may not run programs in the pod of {workload}.",
            hint="An admin allows it in the notebooks' namespace by the chart's jobs.exec.",
            code="exec_not_allowed",
        )
    return Unavailable(
        f"The node of {workload} runs no program for us now: {error.message}.",
        hint="Try again in a moment; if it stays so, kubectl exec says more to an admin.",
        code="exec_unavailable",
    )
