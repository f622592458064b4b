"""Leader election by a Lease: only its holder runs the scheduler.

Follows client-go's protocol, so that `kubectl get lease` reads as usual. Each candidate measures
time by its own clock from when it saw a change, so clocks may differ. A leader that cannot renew
stops its work before another candidate may take over; kubernetes_asyncio's own election (36.1) ends
at the first broken connection, and may wait for an answer longer than the Lease lasts. Renewal runs
in a thread with its own event loop and connection: on a busy machine a scheduling cycle, or a
thousand requests, would delay it for seconds.
"""

import asyncio
import contextlib
import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object

LOG = logging.getLogger("runai.kubernetes")


class LeaderElection:
    """One candidate for one Lease."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        identity: str,
        name: str = "runai-scheduler",
        lasts_s: int = 15,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Configure a candidate for the Lease.

        `identity` is unique to this process, such as its pod's name and UID.
        """
        self._api = api
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._lasts_s = lasts_s
        self._renewal_limit_s = lasts_s * 2 / 3
        self._try_interval_s = lasts_s / 7
        self._clock = clock
        self._lease: Object | None = None
        self._first_seen_at = 0.0
        """Time at which the current version of the Lease was first seen."""

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> NoReturn:
        """Run `work` while this candidate leads; cancel it when the Lease is lost.

        Errors of the work are raised; errors of the API server are retried.
        """
        while True:
            await self._acquire()
            LOG.info("%s is the leader", self._identity)
            renewal = _RenewalThread(self._api, self._renew)
            losing = asyncio.create_task(renewal.renewal_ended.wait())
            working = asyncio.create_task(work())
            try:
                await asyncio.wait({losing, working}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    await working
            finally:
                for task in (working, losing):
                    task.cancel()
                await asyncio.gather(working, losing, return_exceptions=True)
                await renewal.stop()
            LOG.warning("%s is no longer the leader", self._identity)

    async def resign(self) -> None:
        """Release the Lease so that the next candidate leads at once.

        Call it after the work has ended.
        """
        if self._lease is None or self._holder() != self._identity:
            return
        await self._fetch(self._api)  # the last renewal may have succeeded unseen
        if self._holder() == self._identity:
            await self._write(self._api, "")

    async def _acquire(self) -> None:
        """Return when this candidate holds the Lease."""
        while True:
            if await self._try_hold(self._api):
                return
            await asyncio.sleep(self._try_interval_s)

    async def _renew(self, api: Api) -> None:
        """Renew the Lease; return when it is lost, or for two thirds of it no renewal succeeds."""
        renewed = self._clock()
        while True:
            await asyncio.sleep(self._try_interval_s)
            attempted_at = self._clock()
            remaining_s = renewed + self._renewal_limit_s - attempted_at
            try:
                async with asyncio.timeout(max(0.0, remaining_s)):
                    is_renewed = await self._try_hold(api)
            except TimeoutError:
                return
            if is_renewed:
                renewed = attempted_at
            elif self._holder() != self._identity:
                return

    async def _try_hold(self, api: Api) -> bool:
        """Acquire or renew the Lease; return True if this candidate holds it."""
        try:
            await self._fetch(api)
            if self._lease is None:
                await self._create(api)
                return True
            lasts_s = float(self._lease["spec"].get("leaseDurationSeconds") or self._lasts_s)
            is_free = self._holder() in ("", self._identity)
            if not is_free and self._clock() < self._first_seen_at + lasts_s:
                return False
            await self._write(api, self._identity)
        except ApiError as error:
            if error.status not in (404, 409):
                LOG.warning("lease %s: %s", self._name, error.message)
            return False
        return True

    async def _fetch(self, api: Api) -> None:
        """Read the Lease, and note the time if its version is new."""
        try:
            lease = await api.get(f"{self._leases}/{self._name}")
        except ApiError as error:
            if error.status != 404:
                raise
            self._lease = None
            return
        if self._lease is None or _version(self._lease) != _version(lease):
            self._first_seen_at = self._clock()
        self._lease = lease

    async def _create(self, api: Api) -> None:
        body = {"metadata": {"name": self._name}, "spec": self._spec(self._identity)}
        self._save(await api.create(self._leases, body))

    async def _write(self, api: Api, holder: str) -> None:
        """Set the holder; the API server refuses the second of two concurrent writers.

        The Lease includes its resourceVersion.
        """
        assert self._lease is not None
        body = {**self._lease, "spec": {**self._lease["spec"], **self._spec(holder)}}
        self._save(await api.replace(f"{self._leases}/{self._name}", body))

    def _save(self, lease: Object) -> None:
        self._lease, self._first_seen_at = lease, self._clock()

    def _holder(self) -> str:
        return "" if self._lease is None else self._lease["spec"].get("holderIdentity") or ""

    def _spec(self, holder: str) -> dict[str, Any]:
        """Return the fields of a Lease that `holder` acquires or renews now; "" releases it."""
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, Any] = {
            "holderIdentity": holder,
            "leaseDurationSeconds": self._lasts_s,
            "renewTime": now,
        }
        if holder != self._holder():
            before = {} if self._lease is None else self._lease["spec"]
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + bool(before)
        return spec


class _RenewalThread:
    """Renewal in a thread with its own event loop and connection, until it is stopped."""

    def __init__(self, api: Api, renew: Callable[[Api], Coroutine[Any, Any, None]]) -> None:
        """Start `renew` in the thread."""
        self.renewal_ended = asyncio.Event()
        """Set when `renew` has returned; belongs to the loop that created this."""
        self._thread_ended = asyncio.Event()
        self._creator_loop = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._stop_requested = asyncio.Event()
        self._work = self._loop.create_task(self._until_stopped(api, renew))
        threading.Thread(target=self._run, name="lease", daemon=True).start()

    async def stop(self) -> None:
        """Stop renewal, and return when no request of it is in flight."""
        with contextlib.suppress(RuntimeError):  # the thread's loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._stop_requested.set)
        await self._thread_ended.wait()

    async def _until_stopped(
        self, api: Api, renew: Callable[[Api], Coroutine[Any, Any, None]]
    ) -> None:
        """Run `renew` with a connection of this loop until it returns or `stop` is called."""
        async with api.clone() as own_api:
            renewing = asyncio.create_task(renew(own_api))
            stopping = asyncio.create_task(self._stop_requested.wait())
            await asyncio.wait({renewing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self._set_in_creator(
                self.renewal_ended
            )  # before the connection is closed, which may take seconds
            for task in (renewing, stopping):
                task.cancel()
            outcome, _ = await asyncio.gather(renewing, stopping, return_exceptions=True)
            if isinstance(outcome, Exception):
                LOG.error("the lease cannot be renewed", exc_info=outcome)

    def _run(self) -> None:
        try:
            with contextlib.closing(self._loop):
                self._loop.run_until_complete(self._work)
        finally:
            self._set_in_creator(self.renewal_ended)
            self._set_in_creator(self._thread_ended)

    def _set_in_creator(self, event: asyncio.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the creator's loop may be closed
            self._creator_loop.call_soon_threadsafe(event.set)


def _version(lease: Object) -> str:
    return str(lease["metadata"]["resourceVersion"])
