"""Devices of ended sessions on which processes are left over that could not be ended.

Such a device counts as broken until they are gone: nothing new starts there, what runs stays. A
restart of the service forgets them.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from runai.hub_service.model.records import WorkloadId
from runai.hub_service.processes.session_end import LeftOver, still_there

LOOK_EVERY_S = 5.0


class LeftOvers:
    """Processes that are left over, by the devices they may hold."""

    def __init__(self, on_change: Callable[[Collection[str]], None]) -> None:
        """Begin without any; `on_change` gets the UUIDs of devices whose `fault` changed."""
        self._on_change = on_change
        self._left: dict[str, tuple[WorkloadId, Sequence[LeftOver]]] = {}
        self._news = asyncio.Event()

    def add(self, workload: WorkloadId, devices: Collection[str], left: Sequence[LeftOver]) -> None:
        """Add what a session has left on devices, by UUID."""
        if left and devices:
            self._left |= dict.fromkeys(devices, (workload, left))
            self._on_change(devices)
            self._news.set()

    def fault(self, device: str) -> str:
        """Return why nothing new is placed on a device, as half a sentence; "" if it is free."""
        if device not in self._left:
            return ""
        workload, [one, *others] = self._left[device]
        more = f" and {len(others)} more" if others else ""
        verb = "are" if others else "is"
        return (
            f"{one.name} (process {one.pid} of {one.account}){more} {verb} left over from"
            f" {workload}"
        )

    async def run(self) -> NoReturn:
        """Forget processes soon after they have gone, until cancelled."""
        while True:
            await self._news.wait()
            while self._left:
                await asyncio.sleep(LOOK_EVERY_S)
                await self.look()
            self._news.clear()

    async def look(self) -> None:
        """Forget processes that have gone."""
        before = {device: self.fault(device) for device in self._left}
        known = {process for _, left in self._left.values() for process in left}
        there = await asyncio.to_thread(lambda: {one for one in known if still_there(one)})
        for device, (workload, left) in [*self._left.items()]:
            rest = [one for one in left if one in there or one not in known]
            if rest:
                self._left[device] = (workload, rest)
            else:
                del self._left[device]
        if changed := [device for device, text in before.items() if self.fault(device) != text]:
            self._on_change(changed)
