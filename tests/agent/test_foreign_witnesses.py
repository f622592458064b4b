"""What nvitop and gpustat see through the same library: the same devices, processes and loads.

They know NVML from years of other people's machines; where they and our reader agree on the fake
library, its answers have the form of the real one's. Each runs as a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest

from runai.hub_service.agent.devices import Poll
from runai.hub_service.agent.nvml import NvmlDevices

pytestmark = pytest.mark.cc

NVITOP = """
import json
from nvitop import Device
print(json.dumps([
    {
        "uuid": device.uuid(),
        "name": device.name(),
        "mib": device.memory_total() >> 20,
        "used": device.memory_used() >> 20,
        "load": device.gpu_utilization(),
        "processes": [
            [p.pid, p.gpu_memory() >> 20, p.gpu_sm_utilization(), p.username()]
            for p in device.processes().values()
        ],
    }
    for device in Device.all()
]))
"""

UUIDS = [f"GPU-{n}aaaaaaa-0000-0000-0000-000000000000" for n in range(3)]
RESERVED = 600


@dataclass
class Scene:
    """Processes on devices, as our reader sees them, and how a stranger is asked."""

    poll: Poll
    environment: dict[str, str]

    def ask(self, *command: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, *command], env=self.environment, capture_output=True, check=True
        )
        told = json.loads(done.stdout)
        devices: list[dict[str, Any]] = told["gpus"] if isinstance(told, dict) else told
        return devices

    def ours(self, *columns: str) -> list[list[tuple[object, ...]]]:
        """Give our readings of the processes of each device."""
        return [
            sorted(
                tuple(getattr(p, column) for column in columns)
                for p in self.poll.processes
                if p.device == uuid
            )
            for uuid in UUIDS
        ]


@pytest.fixture
def scene(nvml, nvml_library, start, hold):
    gpus = [f"gpu {u} 143771 {RESERVED} {n * 300} {n * 20} H200" for n, u in enumerate(UUIDS)]
    nvml.write(*gpus)
    source = NvmlDevices()
    first, second, third = start(), start(), start(env={"RUNAI_WORKLOAD": "vision/a"})
    # nvitop asks for the samples of the last second by its own clock: these are newer for long.
    now_us = (int(time.time()) + 3600) * 1_000_000
    nvml.write(
        *gpus,
        f"proc 1 {first.pid} 200 C", f"sample 1 {first.pid} {now_us} 35",
        f"proc 1 {second.pid} 100 G",
        f"proc 2 {third.pid} 600 C", f"sample 2 {third.pid} {now_us + 1} 72",
    )  # fmt: skip
    yield Scene(
        source.poll([hold("vision/a", UUIDS[2])]),
        os.environ | {"LD_LIBRARY_PATH": str(nvml_library.parent)},
    )
    source.close()


def test_nvitop_sees_what_we_see(scene):
    told = scene.ask("-c", NVITOP)

    assert [(d["uuid"], d["used"], d["load"]) for d in told] == [
        (d.device, d.memory_mib, round(100 * (d.utilization or 0))) for d in scene.poll.devices
    ]
    assert [d["mib"] for d in told] == [143771] * 3
    seen = [sorted((p[0], p[1], p[2] / 100, p[3]) for p in d["processes"]) for d in told]
    assert seen == scene.ours("pid", "memory_mib", "utilization", "account")


def test_gpustat_sees_what_we_see(scene):
    told = scene.ask("-m", "gpustat", "--json")

    assert [(d["uuid"], d["memory.used"], d["utilization.gpu"]) for d in told] == [
        (d.device, d.memory_mib, round(100 * (d.utilization or 0))) for d in scene.poll.devices
    ]
    keys = ("pid", "gpu_memory_usage", "username", "command")
    seen = [sorted(tuple(p[key] for key in keys) for p in d["processes"]) for d in told]
    assert seen == scene.ours("pid", "memory_mib", "account", "name")


def test_we_know_whose_they_are(scene):
    assert scene.ours("workload") == [[], [("",), ("",)], [("vision/a",)]]
