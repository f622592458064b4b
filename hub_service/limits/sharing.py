"""Device sharing on this machine: time slicing, or MPS if an admin enabled it.

Starts and stops the MPS supervisors (`mps_supervisor`) and builds the workers' environment. Only
workers of a single shared device use MPS, and only after a test showed that the device's limit
holds; all other workers are time-sliced.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM
from typing import Protocol

from runai.hub_service.limits.mps_daemon import MpsDaemon
from runai.hub_service.limits.mps_supervisor import SupervisorState
from runai.hub_service.limits.tiers import MPS_IS_TRIED, NO_MPS_HERE
from runai.hub_service.processes import pidfd
from runai.hub_service.processes.own_process import MODULE

MPS_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""Variable that marks a worker as an MPS client with a memory limit."""

_SUPERVISOR = (*MODULE, "runai.hub_service.limits.mps_supervisor")
_DETACHED = ("/bin/sh", "-c", '"$@" &', "sh")
_PASSED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "HOME")
"""Variables passed on to a supervisor; the service's environment also contains secrets."""


class Sharing(Protocol):
    """A way of sharing devices: a worker's environment, and the state shown to users."""

    def variables(self, device: str, memory_mib: int) -> Mapping[str, str]:
        """Return the variables of a worker of this single device; must be quick."""

    def unavailable_reason(self, device: str) -> str:
        """Return why a device is not shared as configured (half a sentence), else ""."""

    def mps(self, device: str) -> str | None:
        """Return why MPS does not work on a device; "" if it does.

        It works once a test has shown that it enforces the memory limit. The reason is a clause
        without full stop. None if MPS is not enabled.
        """


class TimeSliced:
    """Time slicing, CUDA's default: contexts take turns, and workers need no variables."""

    def variables(self, device: str, memory_mib: int) -> Mapping[str, str]:
        """Return no variables."""
        del device, memory_mib
        return {}

    def unavailable_reason(self, device: str) -> str:
        """Return "": time slicing needs no set-up that could fail."""
        del device
        return ""

    def mps(self, device: str) -> str | None:
        """Return None: MPS is not enabled."""
        del device
        return None


class MpsSharing:
    """MPS with a supervisor per device. Its folder in `directory` is named after the UUID's end."""

    def __init__(self, directory: Path, devices: Sequence[str], *, refused: str = "") -> None:
        """Share these devices; none of them if `refused` has a reason (half a sentence)."""
        self._directory = directory
        self._devices = () if refused else tuple(devices)
        self._refused = refused

    def begin(self) -> None:
        """Start the missing supervisors; their state file tells when they are ready, or why not."""
        for device in self._devices:
            state = SupervisorState.read(self._directory_of(device))
            if state is None or not state.lives():
                self._start(device)

    def end(self) -> None:
        """Stop all supervisors and their daemons."""
        for path in self._directory.glob("*/state.json"):
            state = SupervisorState.read(path.parent)
            if state is not None:
                with suppress(PermissionError):
                    pidfd.send(state.pid, state.created, SIGTERM)

    def variables(self, device: str, memory_mib: int) -> Mapping[str, str]:
        """Return the variables of an MPS client with its limit; none before MPS is ready."""
        state = (
            SupervisorState.read(self._directory_of(device)) if device in self._devices else None
        )
        if state is None or not state.ready:
            return {}
        daemon = MpsDaemon(device, self._directory_of(device))
        return daemon.client_environment(memory_mib=memory_mib)

    def unavailable_reason(self, device: str) -> str:
        """Return why MPS is not available on a device; "" if it is."""
        if device not in self._devices:
            return self._refused
        state = SupervisorState.read(self._directory_of(device))
        return state.reason if state is not None else "its daemon does not run"

    def mps(self, device: str) -> str | None:
        """Return the state of MPS on a device, also while its limit is being tested."""
        if device not in self._devices:
            return self._refused or NO_MPS_HERE
        state = SupervisorState.read(self._directory_of(device))
        if state is None or state.reason or state.ready:
            return self.unavailable_reason(device)
        return MPS_IS_TRIED

    def _directory_of(self, device: str) -> Path:
        return self._directory / device[-12:]

    def _start(self, device: str) -> None:
        """Start the supervisor of a device's daemon, detached from the service."""
        directory = self._directory_of(device)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / "state.json").unlink(missing_ok=True)
        with (directory / "keeper.log").open("w", encoding="utf-8") as log:
            # Started by a shell that exits at once, so that the supervisor is no child of ours.
            subprocess.run(  # noqa: S603  our own module
                [*_DETACHED, *_SUPERVISOR, device, str(directory)],
                env={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                check=True,
            )
