"""Devices of ended sessions on which processes are left over that could not be ended.

Such a device counts as broken until they are gone: nothing new starts there, what runs stays. A
file keeps them for the next service.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NoReturn

from runai.hub_service.clusters.local.supervisor.exit_notes import write_whole
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.processes.session_end import LeftOver, still_there

LOG = logging.getLogger(__name__)

LEFT_OVER = "left_over.json"
POLL_EVERY_S = 5.0


class LeftOverProcesses:
    """Processes that are left over, by the devices they may hold."""

    def __init__(self, file: Path, on_change: Callable[[Collection[str]], None]) -> None:
        """Begin with what `file` keeps; `on_change` gets UUIDs of devices whose `fault` changed."""
        self._file = file
        self._on_change = on_change
        self._left: dict[str, tuple[WorkloadId, Sequence[LeftOver]]] = {}
        self._added = asyncio.Event()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # not ours
            stored = json.loads(file.read_bytes())
            self._left = {
                device: (workload, [LeftOver(*one) for one in left])
                for device, (workload, left) in stored.items()
            }

    def add(self, workload: WorkloadId, devices: Collection[str], left: Sequence[LeftOver]) -> None:
        """Add what a session has left on devices, by UUID."""
        if left and devices:
            self._left |= dict.fromkeys(devices, (workload, left))
            self._report_and_save(devices)
            self._added.set()

    def fault(self, device: str) -> str:
        """Return why nothing new is placed on a device, as half a sentence; "" if it is free."""
        if device not in self._left:
            return ""
        workload, [first, *rest] = self._left[device]
        more = f" and {len(rest)} more" if rest else ""
        verb = "are" if rest else "is"
        return (
            f"{first.name} (process {first.pid} of {first.account}){more} {verb} left over from"
            f" {workload}"
        )

    async def run(self) -> NoReturn:
        """Forget processes soon after they have gone, until cancelled."""
        if self._left:
            self._on_change([*self._left])
            self._added.set()
        while True:
            await self._added.wait()
            while self._left:
                await asyncio.sleep(POLL_EVERY_S)
                await self.drop_exited()
            self._added.clear()

    async def drop_exited(self) -> None:
        """Forget processes that have gone."""
        before = {device: self.fault(device) for device in self._left}
        checked = {process for _, left in self._left.values() for process in left}
        alive = await asyncio.to_thread(lambda: {one for one in checked if still_there(one)})
        for device, (workload, left) in [*self._left.items()]:
            # Processes may have been added during the check.
            rest = [one for one in left if one in alive or one not in checked]
            if rest:
                self._left[device] = (workload, rest)
            else:
                del self._left[device]
        if changed := [device for device, text in before.items() if self.fault(device) != text]:
            self._report_and_save(changed)

    def _report_and_save(self, devices: Collection[str]) -> None:
        """Report the devices whose fault has changed, and save all left-over processes."""
        self._on_change(devices)
        try:
            write_whole(str(self._file), self._left)
        except OSError as failed:
            LOG.warning("%s: %s; a restart forgets what is left over", self._file, failed.strerror)
