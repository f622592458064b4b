"""A world of process numbers of its own, with an agent's devices in it; run by `unshare`, as PID 1.

Reads one request a line (JSON) and answers each with a line. Numbers are given to real processes,
and given again, by telling the kernel which was the last: nobody else takes one in between here.
Loads are told by the fake library, whose state is written here; the rest is the agent's own code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from runai.hub_service.agent import usage
from runai.hub_service.agent.nvml import NvmlDevices
from runai.hub_service.api.reports import AgentAllocation

STATE = Path(os.environ["FAKE_NVML_STATE"])
GPU = "gpu GPU-0 1000 100 0 0 Fake"
RING = 64
"""So many samples are told again and again, as a driver's ring does."""


class Owner:
    """A shell whose children are its processes; with a workload's name in their environment."""

    def __init__(self, workload: str) -> None:
        named = {"RUNAI_WORKLOAD": workload} if workload else {}
        self.shell = subprocess.Popen(
            ["/bin/sh"],
            env={"PATH": os.environ["PATH"]} | named,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it tells of everyone that it kills
            text=True,
        )

    def ask(self, command: str) -> str:
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(command + "\n")
        self.shell.stdin.flush()
        return self.shell.stdout.readline().strip()


class World:
    """Who has which number, what the driver tells, and the agent that looks."""

    def __init__(self, owners: list[str]) -> None:
        self.owners = {name: Owner(name) for name in owners}
        self.holders: dict[int, Owner] = {}
        self.ring: list[str] = []
        self.newest_us = 0
        self.begin()

    def begin(self) -> None:
        """End every process and open the devices anew."""
        for number in list(self.holders):
            self.end(number)
        self.ring.clear()
        self.write()
        self.restart()

    def restart(self) -> None:
        self.devices = NvmlDevices()

    def roots(self) -> dict[str, tuple[int, float]]:
        pids = {name: owner.shell.pid for name, owner in self.owners.items()}
        return {name: (pid, psutil.Process(pid).create_time()) for name, pid in pids.items()}

    def start(self, number: int, owner: str) -> None:
        """Give a number to a new process, in a later hundredth of a second than all so far.

        The kernel tells the start of a process no finer, so that is when numbers are used again.
        """
        shell = self.owners[owner]
        while True:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
            given = int(shell.ask("sleep 1000 > /dev/null & echo $!"))
            self.holders[given] = shell
            started_us = self.started_us(given)
            if given == number and started_us > self.newest_us:
                self.newest_us = int(started_us) + 1000
                return
            self.end(given)

    def started_us(self, number: int) -> float:
        """Return when it was started, at most a millisecond too early."""
        ticks = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
        boot = min(-time.clock_gettime(time.CLOCK_BOOTTIME) + time.time() for _ in range(3))
        return 1e6 * (boot + int(ticks) / os.sysconf("SC_CLK_TCK")) - 500

    def end(self, number: int) -> None:
        self.holders.pop(number).ask(f"kill -9 {number}; wait {number}; echo")

    def sample(self, number: int, busy: int) -> None:
        self.newest_us = max(self.newest_us + 1, time.time_ns() // 1000)
        self.ring = [*self.ring, f"sample 0 {number} {self.newest_us} {busy}"][-RING:]

    def poll(self, allocations: list[dict[str, Any]]) -> dict[str, Any]:
        held = [AgentAllocation.model_validate(one) for one in allocations]
        self.write()
        poll = self.devices.poll(held)
        return usage.report("n1", poll, held).model_dump(mode="json")

    def write(self) -> None:
        new = STATE.with_suffix(".new")
        running = (f"proc 0 {number} 10 C" for number in self.holders)
        new.write_text("\n".join((GPU, *running, *self.ring)) + "\n")
        new.rename(STATE)


def main() -> None:
    world = World(sys.argv[1:])
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(getattr(world, what)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
