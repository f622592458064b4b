"""Admission of a session by the service: submit, wait, attach, release.

Every reason to wait becomes a sentence on the progress page; a refusal ends the start.
"""

import asyncio
import html
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import jupyterhub.spawner
from tornado.web import HTTPError

from runai.hub_service.client import AsyncClient
from runai.hub_service.client.calls import Named, WorkloadIdentity
from runai.hub_service.wire.errors import Conflict, NotFound, RunaiError, Unavailable
from runai.hub_service.wire.program_schemas import ProcessReport
from runai.hub_service.wire.schemas import FINISHED, SubmitReply, WorkloadDetail
from runai.hub_service.wire.workload_request import SubmitRequest

T = TypeVar("T")

POLL_SECONDS: Final = 25.0
RESTART_SECONDS: Final = 30.0  # a restarting service answers again within seconds
RETRY_SECONDS: Final = 0.5
STALE_SECONDS: Final = 60.0
_GRANTED: Final = frozenset({"starting", "running"})


class _SpawnException5(HTTPError):
    """JupyterHub 6's exception for JupyterHub 5: an HTTP error below 500 has the same effect."""

    def __init__(self, message: str, *, reason: str, status_code: int = 400) -> None:
        super().__init__(status_code, message, reason=reason)


# Logged without traceback, and not counted towards `consecutive_failure_limit`.
_SpawnException: Any = getattr(jupyterhub.spawner, "SpawnException", _SpawnException5)


class SessionRefused(_SpawnException):
    """The refusal of a session's start; the user reads its message."""

    jupyterhub_html_message: str

    def __init__(self, message: str, *, reason: str, status_code: int = 400) -> None:
        super().__init__(message, reason=reason, status_code=status_code)
        # JupyterHub 5 and 6 show these on the form and at the end of the progress bar.
        self.jupyterhub_message = message

    @classmethod
    def of(cls, error: RunaiError) -> "SessionRefused":
        """Convert an error of the service, with its hint."""
        return cls(str(error), reason=error.code)

    @classmethod
    def of_end(
        cls, how: str, lines: str, *, hint: str = "", suggestion: str = ""
    ) -> "SessionRefused":
        """Return the refusal after a server's early end; only the user sees its last `lines`.

        `how` is in a few words, `hint` replaces missing lines; all but the first may be "".
        """
        sentence = f"Your server ended before it answered{f' ({how})' if how else ''}."
        if hint and not lines:
            sentence = f"{sentence} {hint}"
        refused = cls(sentence, reason="ended")
        refused.jupyterhub_message = f"{sentence} {suggestion}".rstrip()
        if lines:
            heading = f"{sentence} Its last lines:"
            refused.jupyterhub_message = f"{heading}\n{lines}\n{suggestion}".rstrip()
            refused.jupyterhub_html_message = (
                f"{html.escape(heading)}"
                f'<pre class="text-start" style="white-space: pre-wrap">{html.escape(lines)}</pre>'
                f"{html.escape(suggestion)}"
            )
        return refused


class StartTimeout(TimeoutError):
    """A server with granted GPUs that did not start; JupyterHub counts it as a failure."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.jupyterhub_message = message


class Admission:
    """A session's request for GPUs from the service, from submission to release.

    `notify` receives each new progress message for the user. `workload` is the id of the submitted
    workload, "" before. A caller that fails or is cancelled must call `release`.
    """

    def __init__(
        self, client: AsyncClient, notify: Callable[[str], None], workload: Named = ""
    ) -> None:
        self._client = client
        self._notify = notify
        self._workload = workload

    @property
    def workload(self) -> str:
        """Return the id of the submitted workload; "" before."""
        return self._workload if isinstance(self._workload, str) else self._workload.id

    async def admit(self, request: SubmitRequest, *, within_s: float) -> WorkloadDetail:
        """Submit and return once devices are granted.

        Raises:
            SessionRefused: the service refuses it, it was deleted, or not granted in time.
        """
        try:
            self._workload = await self._submit(request)
        except RunaiError as error:
            raise SessionRefused.of(error) from error
        last_reason = ""
        try:
            async with asyncio.timeout(within_s):
                detail = await self._retrying(lambda: self._client.workload(self._workload))
                while detail.state not in _GRANTED:
                    if detail.state in FINISHED:
                        raise SessionRefused(
                            f"The session ended while it waited{_why(detail)}.", reason="ended"
                        )
                    reason = detail.reason.text if detail.reason else ""
                    if reason and reason != last_reason:
                        self._notify(f"Waiting: {reason}")
                    last_reason = reason or last_reason
                    detail = await self._next_change(detail)
        except NotFound as deleted:
            raise SessionRefused(
                "The session was deleted while it waited.", reason="deleted"
            ) from deleted
        except RunaiError as error:
            raise SessionRefused.of(error) from error
        except TimeoutError as late:
            raise SessionRefused(
                f"No GPU was granted within {minutes(within_s)}"
                f"{': ' + last_reason if last_reason else ''}. Ask for less, or try again later.",
                reason="queue_timeout",
            ) from late
        self._notify(_granted_text(detail))
        return detail

    async def check(self, request: SubmitRequest) -> SubmitReply:
        """Dry-run a submission.

        Raises:
            SessionRefused: it could never be granted, or the service does not answer.
        """
        try:
            return await self._retrying(lambda: self._client.submit(request, dry_run=True))
        except RunaiError as error:
            raise SessionRefused.of(error) from error

    async def environment(self) -> dict[str, str]:
        """Return the environment variables that assign the session's devices."""
        try:
            view = await self._retrying(lambda: self._client.environment(self._workload))
        except RunaiError as error:
            raise SessionRefused.of(error) from error
        return view.environment

    async def attach(self, process: ProcessReport) -> None:
        """Bind the allocation to a process.

        Raises:
            SessionRefused: the allocation is gone; the caller must stop the process.
        """
        try:
            await self._retrying(lambda: self._client.attach(self._workload, process))
        except RunaiError as error:
            raise SessionRefused.of(error) from error

    async def release(self) -> bool:
        """Delete the workload; return False if the service did not answer (it will notice)."""
        try:
            await self._client.delete(self._workload)
        except (NotFound, Conflict):  # or another one has its name by now
            return True
        except RunaiError:
            return False
        return True

    async def _submit(self, request: SubmitRequest) -> WorkloadIdentity:
        """Submit; if an old workload of this server has the name, delete that first."""
        deadline = asyncio.get_running_loop().time() + RESTART_SECONDS
        while True:
            try:
                reply = await self._client.submit(request)
                [made] = reply.workloads
                return WorkloadIdentity(made.id, made.uid)
            except Conflict:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                stale = f"{request.project}/{request.name}"
                await self._remove_stale(stale, request.owner or "", request.server)
            except Unavailable:
                # It may be stored all the same: then the retry finds it as a stale workload.
                if asyncio.get_running_loop().time() > deadline:
                    raise
                self._notify("The GPU service does not answer; trying again.")
                await asyncio.sleep(RETRY_SECONDS)

    async def _remove_stale(self, workload: str, owner: str, server: str) -> None:
        """Delete a session of this server, unused since the server does not run; never a job."""
        try:
            detail = await self._client.workload(workload)
            if (detail.user, detail.kind, detail.server) != (owner, "session", server):
                raise Conflict(
                    f"The name {detail.name} is taken by a {detail.kind} of {detail.user}.",
                    hint=f"Ask {detail.user} to delete it, or choose another project.",
                )
            await self._client.delete(detail)
            async with asyncio.timeout(STALE_SECONDS):
                while True:
                    detail = await self._next_change(detail)
        except NotFound:
            return
        except TimeoutError:
            raise Unavailable(
                f"The earlier session {workload} has not ended yet.", hint="Try again in a minute."
            ) from None

    async def _next_change(self, detail: WorkloadDetail) -> WorkloadDetail:
        """Return the workload at its next change, or after one poll."""
        return await self._retrying(lambda: self._client.wait(detail, detail.version, POLL_SECONDS))

    async def _retrying(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call, and retry for 30 s while the service does not answer, as at a restart."""
        deadline = asyncio.get_running_loop().time() + RESTART_SECONDS
        while True:
            try:
                return await call()
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                self._notify("The GPU service does not answer; trying again.")
                await asyncio.sleep(RETRY_SECONDS)


def _granted_text(detail: WorkloadDetail) -> str:
    """Return the sentence about the granted devices and their node."""
    shares = [
        f"{share.gpus:g} of GPU {share.device}" for w in detail.workers for share in w.devices
    ]
    where = next((w.node for w in detail.workers if w.node), "")
    if not shares:
        return "Starting without a GPU"
    return f"Granted: {', '.join(shares)}{' on ' + where if where else ''}"


def _why(detail: WorkloadDetail) -> str:
    return f": {detail.reason.text}" if detail.reason else ""


def minutes(seconds: float) -> str:
    """Format a duration.

    >>> minutes(600), minutes(45)
    ('10 minutes', '45 seconds')
    """
    whole = round(seconds / 60)
    return f"{whole} minutes" if whole > 1 else f"{seconds:g} seconds"
