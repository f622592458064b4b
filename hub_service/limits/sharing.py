"""How devices are shared on this machine: time-sliced, or by MPS where an admin asked for it.

Knows the keepers of MPS daemons (`mps_keeper`) and what a worker's environment gets of them. MPS is
given only to workers of one shared device, once the device's limit was seen to hold; all others are
time-sliced as without it. Made by the composition root, asked by the cluster.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM
from typing import Protocol

from runai.hub_service.limits.mps import MpsDaemon
from runai.hub_service.limits.mps_keeper import KeeperState
from runai.hub_service.limits.tiers import MPS_IS_TRIED, NO_MPS_HERE
from runai.hub_service.processes import pidfd

MPS_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""By this variable a worker is known as a client of MPS with a limit."""

_KEEPER = (sys.executable, "-P", "-m", "runai.hub_service.limits.mps_keeper")
_DETACHED = ("/bin/sh", "-c", '"$@" &', "sh")
_HANDED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "HOME")
"""What a keeper gets of the service's environment, which also holds secrets."""


class Sharing(Protocol):
    """What the cluster asks when it starts a worker, and the pages when they show it."""

    def variables(self, device: str, memory_mib: int) -> Mapping[str, str]:
        """Return what a worker of this one device gets for its share; must be quick."""

    def trouble(self, device: str) -> str:
        """Say why a device is not shared as asked, as half a sentence; "" if it is."""

    def mps(self, device: str) -> str | None:
        """Say how MPS is on a device, as half a sentence: "" while its limit was seen to hold.

        None where it was not asked for.
        """


class TimeSliced:
    """Nothing special: CUDA's contexts take turns."""

    def variables(self, device: str, memory_mib: int) -> Mapping[str, str]:
        """Return nothing."""
        del device, memory_mib
        return {}

    def trouble(self, device: str) -> str:
        """Return nothing: nothing was asked for."""
        del device
        return ""

    def mps(self, device: str) -> str | None:
        """Return None: nothing was asked for."""
        del device
        return None


class MpsSharing:
    """A keeper for each device; it lives in `directory`, by the end of the device's UUID."""

    def __init__(self, directory: Path, devices: Sequence[str], *, refused: str = "") -> None:
        """Share these devices, or none of them because it was `refused` (half a sentence)."""
        self._directory = directory
        self._devices = () if refused else tuple(devices)
        self._refused = refused

    def begin(self) -> None:
        """Start the keepers that do not run; they get ready by themselves, or say why not."""
        for device in self._devices:
            state = KeeperState.read(self._place(device))
            if state is None or not state.lives():
                self._start(device)

    def end(self) -> None:
        """Stop all keepers, and with them their daemons."""
        for path in self._directory.glob("*/state.json"):
            state = KeeperState.read(path.parent)
            if state is not None:
                with suppress(PermissionError):
                    pidfd.send(state.pid, state.created, SIGTERM)

    def variables(self, device: str, memory_mib: int) -> Mapping[str, str]:
        """Return what makes a worker a client, with its limit; nothing before it is ready."""
        state = KeeperState.read(self._place(device)) if device in self._devices else None
        if state is None or not state.ready:
            return {}
        daemon = MpsDaemon(device, self._place(device))
        return daemon.client_environment(memory_mib=memory_mib)

    def trouble(self, device: str) -> str:
        """Say why MPS cannot be had."""
        if device not in self._devices:
            return self._refused
        state = KeeperState.read(self._place(device))
        return state.reason if state is not None else "its daemon does not run"

    def mps(self, device: str) -> str | None:
        """Say how it is; while it is tried whether the limit holds, that."""
        if device not in self._devices:
            return self._refused or NO_MPS_HERE
        state = KeeperState.read(self._place(device))
        if state is None or state.reason or state.ready:
            return self.trouble(device)
        return MPS_IS_TRIED

    def _place(self, device: str) -> Path:
        return self._directory / device[-12:]

    def _start(self, device: str) -> None:
        place = self._place(device)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        (place / "state.json").unlink(missing_ok=True)
        with (place / "keeper.log").open("w", encoding="utf-8") as log:
            # By a shell that leaves at once: the keeper is nobody's child to wait for.
            subprocess.run(  # noqa: S603  ourselves
                [*_DETACHED, *_KEEPER, device, str(place)],
                env={name: os.environ[name] for name in _HANDED_ON if name in os.environ},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                check=True,
            )
