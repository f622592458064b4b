"""A session's way to its GPU: submit, wait with a reason, attach, release; or refuse the start.

The spawners call it in this order. Every reason to wait becomes a sentence for the progress page.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import jupyterhub.spawner
from tornado.web import HTTPError

from runai.hub_service.client import AsyncClient
from runai.hub_service.wire.errors import Conflict, NotFound, RunaiError, Unavailable
from runai.hub_service.wire.program_schemas import ProcessReport
from runai.hub_service.wire.schemas import SubmitRequest, WorkloadDetail

T = TypeVar("T")

POLL_SECONDS: Final = 25.0
# A service that is being restarted answers again within seconds.
RESTART_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.5
STALE_SECONDS: Final = 60.0
_GRANTED: Final = frozenset({"starting", "running"})
_OVER: Final = frozenset({"ended", "failed", "succeeded"})


class _SpawnException5(HTTPError):
    """JupyterHub 6's exception for JupyterHub 5: an HTTP error below 500 has the same effect."""

    def __init__(self, message: str, *, reason: str, status_code: int = 400) -> None:
        super().__init__(status_code, message, reason=reason)


# It makes no traceback, and does not count towards the failures that end the hub.
_SpawnException: Any = getattr(jupyterhub.spawner, "SpawnException", _SpawnException5)


class SessionRefused(_SpawnException):
    """A session that will not start; the sentence is what the user reads."""

    def __init__(self, message: str, *, reason: str, status_code: int = 400) -> None:
        super().__init__(message, reason=reason, status_code=status_code)
        # What both versions show on the form and at the end of the progress bar.
        self.jupyterhub_message = message

    @classmethod
    def of(cls, error: RunaiError) -> "SessionRefused":
        """Pass on what the service refused, with its way out."""
        return cls(str(error), reason=error.code)


class StartTimeout(TimeoutError):
    """A server that had what it asked for and did not come up: a failure, and counted as one."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.jupyterhub_message = message


class Admission:
    """The dealings of one server with the service; `say` takes each new sentence.

    `workload` is what was submitted, "" before; whoever fails or is cancelled has to `release` it.
    """

    def __init__(self, client: AsyncClient, say: Callable[[str], None], workload: str = "") -> None:
        self._client = client
        self._say = say
        self.workload = workload

    async def admit(self, request: SubmitRequest, *, within_s: float) -> WorkloadDetail:
        """Submit and return once devices are granted.

        Raises:
            SessionRefused: it cannot be, was deleted meanwhile, or was not granted in time.
        """
        try:
            self.workload = await self._submit(request)
        except RunaiError as error:
            raise SessionRefused.of(error) from error
        last_reason = ""
        try:
            async with asyncio.timeout(within_s):
                detail = await self._patiently(lambda: self._client.workload(self.workload))
                while detail.state not in _GRANTED:
                    if detail.state in _OVER:
                        raise SessionRefused(
                            f"The session ended while it waited{_why(detail)}.", reason="ended"
                        )
                    last_reason = self._tell(detail, last_reason)
                    detail = await self._next(detail)
        except NotFound as gone:
            raise SessionRefused(
                "The session was deleted while it waited.", reason="deleted"
            ) from gone
        except RunaiError as error:
            raise SessionRefused.of(error) from error
        except TimeoutError as late:
            raise SessionRefused(
                f"No GPU was granted within {minutes(within_s)}"
                f"{': ' + last_reason if last_reason else ''}. Ask for less, or try again later.",
                reason="queue_timeout",
            ) from late
        self._say(_granted(detail))
        return detail

    async def check(self, request: SubmitRequest) -> None:
        """Ask whether it may be had at all, without submitting it.

        Raises:
            SessionRefused: it never could be, or the service does not answer.
        """
        try:
            await self._patiently(lambda: self._client.submit(request, dry_run=True))
        except RunaiError as error:
            raise SessionRefused.of(error) from error

    async def environment(self) -> dict[str, str]:
        """Return the variables that hand the session its devices."""
        try:
            view = await self._patiently(lambda: self._client.environment(self.workload))
        except RunaiError as error:
            raise SessionRefused.of(error) from error
        return view.environment

    async def attach(self, process: ProcessReport) -> None:
        """Tell which process holds the allocation from now on.

        Raises:
            SessionRefused: the allocation is gone; the process must end.
        """
        try:
            await self._patiently(lambda: self._client.attach(self.workload, process))
        except RunaiError as error:
            raise SessionRefused.of(error) from error

    async def release(self) -> bool:
        """Give everything back; return whether the service heard it (if not, it will notice)."""
        try:
            await self._client.delete(self.workload)
        except NotFound:
            return True
        except RunaiError:
            return False
        return True

    async def _submit(self, request: SubmitRequest) -> str:
        """Submit; whatever an earlier life of this server left behind makes room first."""
        deadline = asyncio.get_running_loop().time() + RESTART_SECONDS
        while True:
            try:
                reply = await self._client.submit(request)
                return reply.workloads[0].id
            except Conflict:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                stale = f"{request.project}/{request.name}"
                await self._remove_stale(stale, request.owner or "")
            except Unavailable:
                # It may have been stored all the same: then the next try finds it, as stale.
                if asyncio.get_running_loop().time() > deadline:
                    raise
                self._say("The GPU service does not answer; trying again.")
                await asyncio.sleep(RETRY_SECONDS)

    async def _remove_stale(self, workload: str, owner: str) -> None:
        """Delete what has this server's name: the server does not run, so nobody needs it."""
        try:
            detail = await self._client.workload(workload)
            if detail.user != owner or detail.kind != "session":
                raise Conflict(
                    f"The name {detail.name} is taken by a {detail.kind} of {detail.user}.",
                    hint=f"Ask {detail.user} to delete it, or choose another project.",
                )
            await self._client.delete(workload)
            async with asyncio.timeout(STALE_SECONDS):
                while True:
                    detail = await self._next(detail)
        except NotFound:
            return
        except TimeoutError:
            raise Unavailable(
                f"The earlier session {workload} has not ended yet.", hint="Try again in a minute."
            ) from None

    async def _next(self, seen: WorkloadDetail) -> WorkloadDetail:
        """Return the workload when something about it changed (or, at the latest, after a poll)."""
        return await self._patiently(lambda: self._client.wait(seen.id, seen.version, POLL_SECONDS))

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Try again while the service is being restarted."""
        deadline = asyncio.get_running_loop().time() + RESTART_SECONDS
        while True:
            try:
                return await call()
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                self._say("The GPU service does not answer; trying again.")
                await asyncio.sleep(RETRY_SECONDS)

    def _tell(self, detail: WorkloadDetail, last: str) -> str:
        reason = detail.reason.text if detail.reason else ""
        if reason and reason != last:
            self._say(f"Waiting: {reason}")
        return reason or last


def _granted(detail: WorkloadDetail) -> str:
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
    """Return a time for a sentence.

    >>> minutes(600), minutes(45)
    ('10 minutes', '45 seconds')
    """
    whole = round(seconds / 60)
    return f"{whole} minutes" if whole > 1 else f"{seconds:g} seconds"
