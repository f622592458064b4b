"""nvitop as an independent reader of the same library: the same devices, processes and loads.

nvitop has years of experience with real machines' NVML; where it and our reader agree on the fake
library, the fake's answers have the form of the real one's. It runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from runai.hub_service.agent.devices.nvml import NvmlDevices

pytestmark = [pytest.mark.cc, pytest.mark.tier("all")]  # nvitop comes with the tools of `.[dev]`

NVITOP_PROGRAM = """
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

GPU_UUIDS = [f"GPU-{n}aaaaaaa-0000-0000-0000-000000000000" for n in range(3)]
MEMORY_MIB, RESERVED_MIB = 143_771, 600


def test_agent_and_nvitop_report_equal_devices_processes_and_loads(
    nvml, nvml_library, sleeping_processes
):
    gpus = [
        f"gpu {uuid} {MEMORY_MIB} {RESERVED_MIB} {n * 300} {n * 20} H200"  # used MiB, load in %
        for n, uuid in enumerate(GPU_UUIDS)
    ]
    nvml.write(*gpus)
    source = NvmlDevices()
    first, second = sleeping_processes
    # nvitop asks for the samples of its clock's last second: these stay newer for long.
    now_us = (int(time.time()) + 3600) * 1_000_000
    nvml.write(
        *gpus,
        f"proc 1 {first.pid} 200 C", f"sample 1 {first.pid} {now_us} 35",
        f"proc 1 {second.pid} 100 G",
        f"proc 2 {first.pid} 600 C", f"sample 2 {first.pid} {now_us + 1} 72",
    )  # fmt: skip
    poll = source.poll([])
    source.close()
    environment = os.environ | {"LD_LIBRARY_PATH": str(nvml_library.parent)}
    nvitop_devices = json.loads(
        subprocess.check_output([sys.executable, "-c", NVITOP_PROGRAM], env=environment)
    )

    assert [(d["uuid"], d["used"], d["load"]) for d in nvitop_devices] == [
        (d.device, d.memory_mib, round(100 * (d.utilization or 0))) for d in poll.devices
    ]
    assert [d["mib"] for d in nvitop_devices] == [MEMORY_MIB] * 3
    nvitop_processes = {
        (d["uuid"], pid, mib, load / 100, account)
        for d in nvitop_devices
        for pid, mib, load, account in d["processes"]
    }
    assert len(poll.processes) == sum(len(d["processes"]) for d in nvitop_devices)
    assert nvitop_processes == {
        (p.device, p.pid, p.memory_mib, p.utilization, p.account) for p in poll.processes
    }
