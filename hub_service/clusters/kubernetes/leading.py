"""Let one of several schedulers act: the one that holds a Lease and renews it in time.

Client-go's protocol, so that `kubectl get lease` reads as usual. Time is measured by one's own
clock, from when a change was seen, so clocks may differ. A leader that cannot renew stops its work
before anybody else may begin; kubernetes_asyncio's own election (36.1) ends at the first broken
connection and may wait for an answer longer than the Lease lasts. Called where the parts are put
together, with work that looks at the cluster anew.
"""

import asyncio
import datetime as dt
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from runai.hub_service.clusters.kubernetes.api import Api, ApiError, Object

__all__ = ["Leadership"]

LOG = logging.getLogger("runai.kubernetes")


class Leadership:
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
        """Be a candidate; `identity` is this process's alone, such as its pod's name and UID."""
        self._api = api
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._lasts_s = lasts_s
        self._give_up_s = lasts_s * 2 / 3
        self._every_s = lasts_s / 7
        self._clock = clock
        self._lease: Object | None = None
        self._seen_at = 0.0
        """When the Lease was first seen as it is."""
        self.works = False
        """Whether the work goes on now."""

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> NoReturn:
        """Do the work whenever this is the leader; it is cancelled when it is no longer.

        Errors of the work are raised; those of the API server are waited out.
        """
        while True:
            await self._win()
            LOG.info("%s leads", self._identity)
            renewing = asyncio.create_task(self._renew())
            working = asyncio.create_task(work())
            self.works = True
            try:
                await asyncio.wait({renewing, working}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    await working
            finally:
                for task in (working, renewing):
                    task.cancel()
                await asyncio.gather(working, renewing, return_exceptions=True)
                self.works = False
            LOG.warning("%s leads no longer", self._identity)

    async def resign(self) -> None:
        """Let the next one begin at once; to be called when the work has ended."""
        if self._lease is not None and self._holder() == self._identity:
            await self._write("")

    async def _win(self) -> None:
        while True:
            if await self._try():
                return
            await asyncio.sleep(self._every_s)

    async def _renew(self) -> None:
        """Return when the Lease is lost, or could not be renewed for too long."""
        renewed = self._clock()
        while True:
            await asyncio.sleep(self._every_s)
            asked = self._clock()
            left = renewed + self._give_up_s - asked
            try:
                async with asyncio.timeout(max(0.0, left)):
                    is_renewed = await self._try()
            except TimeoutError:
                return
            if is_renewed:
                renewed = asked
            elif self._holder() != self._identity:
                return

    async def _try(self) -> bool:
        """Take or renew the Lease; tell whether it is ours."""
        try:
            await self._look()
            if self._lease is None:
                return await self._create()
            lasts = float(self._lease["spec"].get("leaseDurationSeconds") or self._lasts_s)
            is_free = self._holder() in ("", self._identity)
            if not is_free and self._clock() < self._seen_at + lasts:
                return False
            return await self._write(self._identity)
        except ApiError as error:
            if error.status not in (404, 409):
                LOG.warning("lease %s: %s", self._name, error.message)
            return False

    async def _look(self) -> None:
        try:
            found = await self._api.get(f"{self._leases}/{self._name}")
        except ApiError as error:
            if error.status != 404:
                raise
            self._lease = None
            return
        known = self._lease
        if known is None or _version(known) != _version(found):
            self._seen_at = self._clock()
        self._lease = found

    async def _create(self) -> bool:
        body = {"metadata": {"name": self._name}, "spec": self._spec(self._identity)}
        self._take(await self._api.create(self._leases, body))
        return True

    async def _write(self, holder: str) -> bool:
        assert self._lease is not None
        # Its resourceVersion goes with it: whoever writes second is refused.
        body = {**self._lease, "spec": {**self._lease["spec"], **self._spec(holder)}}
        self._take(await self._api.replace(f"{self._leases}/{self._name}", body))
        return True

    def _take(self, lease: Object) -> None:
        self._lease, self._seen_at = lease, self._clock()

    def _holder(self) -> str:
        return "" if self._lease is None else self._lease["spec"].get("holderIdentity") or ""

    def _spec(self, holder: str) -> dict[str, Any]:
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


def _version(found: Object) -> str:
    return str(found["metadata"]["resourceVersion"])
