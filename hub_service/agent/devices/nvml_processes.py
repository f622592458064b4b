"""Processes on a GPU, from NVML's three memory lists and its load samples.

Handles overlapping lists, sentinels for "not available", repeated samples, and errors that mean
idle. The only state is the time of the newest sample (`Gpu.last_sample`).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pynvml

from runai.hub_service.agent.devices import nvml_lists
from runai.hub_service.agent.devices.nvml_inventory import (
    MIB,
    UNKNOWN,
    AllocatableDevice,
    Gpu,
    call_or_none,
)

MPS_SERVER = "nvidia-cuda-mps"
"""Name prefix of the MPS server, which works for all MPS clients of a GPU."""

_IDLE = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS)
"""Errors that mean idle; some NVML versions return success without samples, raised as an error."""

_NO_INSTANCE = (0xFFFFFFFF, 0xFFFFFFFF)

_MPS_LISTING = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
_LISTINGS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    _MPS_LISTING,
)
"""NVML functions of driver 510 and newer."""


class Sample(NamedTuple):
    """One utilization sample of one PID."""

    at_us: int
    busy_percent: int


class DeviceProcesses(NamedTuple):
    """The processes on a device."""

    memory: dict[int, int | None]
    """MiB by PID; None: not reported."""
    clients: set[int]
    """PIDs of MPS clients among them."""


def device_processes(nvml_device: AllocatableDevice) -> DeviceProcesses:
    """Merge the lists of compute, graphics and MPS processes; a process may be in several.

    Raises:
        NVMLError: the device does not answer.
    """
    memory: dict[int, int | None] = {}
    clients: set[int] = set()
    for listing in _LISTINGS:
        for pid, used, *ids in (
            call_or_none(nvml_lists.processes, listing, nvml_device.handle) or ()
        ):
            if nvml_device.instance is not None and tuple(ids) not in {
                nvml_device.instance,
                _NO_INSTANCE,
            }:
                continue
            if listing == _MPS_LISTING:
                clients.add(pid)
            if used == nvml_lists.NOT_AVAILABLE:
                memory.setdefault(pid, None)
            else:
                memory[pid] = max(memory.get(pid) or 0, used // MIB)
    return DeviceProcesses(memory, clients)


def busy_by_process(gpu: Gpu) -> dict[int, list[Sample]] | None:
    """Return the new samples by PID; an absent PID is idle. None: load is not reported.

    Raises:
        NVMLError: the device does not answer.
    """
    try:
        samples = nvml_lists.samples(gpu.handle, gpu.last_sample)
    except pynvml.NVMLError as error:
        if error.value in _IDLE:
            return {}
        if error.value in UNKNOWN:
            return None
        raise
    last_sample = newest = gpu.last_sample
    by_process: dict[int, list[Sample]] = {}
    for pid, at, busy, *_ in samples:
        # The ring buffer repeats old samples and contains sentinels. KAI's metrics daemon applies
        # the same three filters (shouldSkipProcessUtilizationSample).
        if at > last_sample and pid and busy <= 100:
            newest = max(newest, at)
            by_process.setdefault(pid, []).append(Sample(at, busy))
    gpu.last_sample = newest
    return by_process


def average(samples: Sequence[Sample], start: float = 0.0, end: float = math.inf) -> float:
    """Return a PID's average load, 0..1; samples outside the window count as idle.

    `start` (inclusive) and `end` (exclusive), in Unix seconds, bound the lifetime of one process if
    several had the PID.
    """
    within = sum(s.busy_percent for s in samples if start <= s.at_us / 1e6 < end)
    return within / len(samples) / 100 if samples else 0.0
