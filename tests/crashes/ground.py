"""What a seed is played on: a platform, and what its breakages take (a disk, a clock, a server).

`on_ground` starts no more than the hand needs and leaves nothing behind. The witness of the jobs is
on another disk than the platform: what they see must not depend on what is broken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from crashes.shifted_clock import ShiftedClock
from crashes.small_disk import SmallDisk
from e2e.running import Platform, end_everything_below
from postgres_restarts import RestartedServer, restarted_server

DISK_MIB = 96


@dataclass
class Ground:
    """A platform with what can be broken of it."""

    platform: Platform
    witness: Path
    disk: SmallDisk | None = None
    clock: ShiftedClock | None = None
    server: RestartedServer | None = None

    @property
    def database(self) -> Path:
        """Return the file of the cluster's truth."""
        return self.platform.data_dir / "cluster.sqlite"

    def hub(self) -> psutil.Process:
        """Return JupyterHub, which has the proxy in it."""
        return psutil.Process(self.platform.running.pid)

    def agent(self) -> psutil.Process:
        """Return the node's agent; supervisors are children of who started them, too.

        Raises:
            LookupError: it, or the service, is just being started.
        """
        for child in self.platform.service_process().children():
            with suppress(psutil.Error):
                if "runai.hub_service.agent" in child.cmdline():
                    return child
        raise LookupError

    def supervisors(self) -> list[psutil.Process]:
        """Return those of this platform's jobs, and their witnesses, oldest first.

        Raises:
            LookupError: none runs.
        """
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                if any(word.endswith("subreaper.py") for word in words):
                    found += [process] if str(self.platform.data_dir) in " ".join(words) else []
        if not found:
            raise LookupError
        return sorted(found, key=lambda process: process.pid)

    def counted(self) -> int:
        """Return how far all jobs have counted together: the clock of this story."""
        total = 0
        for place in self.platform.data_dir.glob("jobs/**/place"):
            with suppress(OSError, ValueError):  # it has just been replaced, or its job deleted
                total += int(place.read_text())
        return total

    def readiness(self) -> dict[str, str]:
        """Return what `health/ready` says; nothing while nobody answers."""
        with suppress(httpx.HTTPError, ValueError):
            url = f"{self.platform.url}/services/runai/health/ready"
            answer: dict[str, str] = httpx.get(url, timeout=5).json()
            return answer
        return {}

    def cycles(self) -> int | None:
        """Return how many cycles this life of the service has run; None while nobody answers."""
        with suppress(httpx.HTTPError, ValueError, KeyError):
            url = f"{self.platform.url}/services/runai/health"
            return int(httpx.get(url, timeout=5).json()["cycles"])
        return None


@contextmanager
def on_ground(folder: Path, needs: Collection[str]) -> Iterator[Ground]:
    """Start a platform below `folder`; `needs` are of `disk`, `clock` and `server`."""
    data, witness = folder / "platform", folder / "witness"
    data.mkdir()
    witness.mkdir()
    with ExitStack() as stack:
        ground = Ground(Platform(data), witness)
        if "disk" in needs:
            ground.disk = SmallDisk(data, DISK_MIB)
            stack.callback(ground.disk.gone)
        if "clock" in needs:
            ground.clock = stack.enter_context(closing(ShiftedClock(folder / "clock")))
            ground.platform.python = ground.clock.python
        if "server" in needs:
            ground.server = stack.enter_context(restarted_server())
            ground.platform.environment = {"RUNAI_LEDGER": ground.server.address}
        # Whatever has become of it: also a platform that did not start leaves processes.
        stack.callback(end_everything_below, data)
        ground.platform.start()
        stack.callback(ground.platform.stop)
        yield ground
