"""The testbed of a seed: a platform, and the disk, clock and server that its faults break.

`running_testbed` starts no more than the seed's faults need and leaves nothing behind. The jobs'
witness folder is on another disk than the platform: their records must not depend on the broken
part.
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
from hub_platform import HubPlatform, kill_processes_below, runai_up
from postgres import PostgresServer, postgres_server

DISK_MIB = 96


@dataclass
class Testbed:
    """A platform with its breakable parts."""

    platform: HubPlatform
    witness: Path
    disk: SmallDisk | None = None
    clock: ShiftedClock | None = None
    server: PostgresServer | None = None

    @property
    def database(self) -> Path:
        """Return the cluster's database file."""
        return self.platform.data_dir / "cluster.sqlite"

    def hub(self) -> psutil.Process:
        """Return JupyterHub's process, which includes the proxy."""
        return psutil.Process(self.platform.running.pid)

    def agent(self) -> psutil.Process:
        """Return the node's agent.

        Raises:
            LookupError: the agent or the service is being started.
        """
        return self._child_of_service("runai.hub_service.agent")

    def worker(self) -> psutil.Process:
        """Return the decision worker.

        Raises:
            LookupError: the worker or the service is being started.
        """
        return self._child_of_service("runai.hub_service.controller.decision_process")

    def _child_of_service(self, module: str) -> psutil.Process:
        """Return the child that runs a module; supervisors are children of the service, too."""
        for child in self.platform.service_process().children():
            with suppress(psutil.Error):
                if module in child.cmdline():
                    return child
        raise LookupError

    def supervisors(self) -> list[psutil.Process]:
        """Return the supervisors and subreapers of this platform's jobs, oldest first.

        Raises:
            LookupError: no supervisor runs.
        """
        supervisors = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                if any(word.endswith("subreaper.py") for word in words):
                    supervisors += (
                        [process] if str(self.platform.data_dir) in " ".join(words) else []
                    )
        if not supervisors:
            raise LookupError
        return sorted(supervisors, key=lambda process: process.pid)

    def steps_done(self) -> int:
        """Return the sum of all jobs' counts: the clock of a seed's run."""
        total = 0
        for place in self.platform.data_dir.glob("jobs/**/step"):
            with suppress(OSError, ValueError):  # replaced meanwhile, or the job was deleted
                total += int(place.read_text())
        return total

    def readiness(self) -> dict[str, str]:
        """Return the answer of `health/ready`; empty while the service does not answer."""
        with suppress(httpx.HTTPError, ValueError):
            url = f"{self.platform.url}/services/runai/health/ready"
            answer: dict[str, str] = httpx.get(url, timeout=5).json()
            return answer
        return {}

    def cycles(self) -> int | None:
        """Return the cycles since the service's start; None while it does not answer."""
        with suppress(httpx.HTTPError, ValueError, KeyError):
            url = f"{self.platform.url}/services/runai/health"
            return int(httpx.get(url, timeout=5).json()["cycles"])
        return None


@contextmanager
def running_testbed(folder: Path, needs: Collection[str]) -> Iterator[Testbed]:
    """Start a platform below `folder`; `needs` are of `disk`, `clock` and `server`."""
    data, witness = folder / "platform", folder / "witness"
    data.mkdir()
    witness.mkdir()
    with ExitStack() as stack:
        testbed = Testbed(runai_up(data), witness)
        if "disk" in needs:
            testbed.disk = SmallDisk(data, DISK_MIB)
            stack.callback(testbed.disk.unmount)
        if "clock" in needs:
            testbed.clock = stack.enter_context(closing(ShiftedClock(folder / "clock")))
            testbed.platform.python = testbed.clock.python
        if "server" in needs:
            testbed.server = stack.enter_context(postgres_server(durable=True))
            testbed.platform.shell = {"RUNAI_LEDGER": testbed.server.address}
        # In every case: a failed start leaves processes, too.
        stack.callback(kill_processes_below, data)
        testbed.platform.start()
        stack.callback(testbed.platform.stop)
        yield testbed
