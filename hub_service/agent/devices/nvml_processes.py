"""Read from NVML which processes use a GPU: memory from three lists, load from a ring of samples.

Knows the driver's habits: lists that overlap, sentinels for "not available", samples that are
repeated, errors that mean idle. Keeps nothing but the time of the newest sample. Called by `nvml`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pynvml

from runai.hub_service.agent.devices import nvml_lists
from runai.hub_service.agent.devices.nvml_hardware import MIB, UNKNOWN, Gpu, Part, known

MPS_SERVER = "nvidia-cuda-mps"
"""How the name of the process begins that works for all clients of MPS on a GPU."""

_IDLE = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS)
"""No process was busy; some libraries answer success without samples, which the binding raises."""

_NO_INSTANCE = (0xFFFFFFFF, 0xFFFFFFFF)

_OF_CLIENTS = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
_LISTINGS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    _OF_CLIENTS,
)
"""Of driver 510 and newer."""


class Sample(NamedTuple):
    """What the driver noted of one process number."""

    at_us: int
    busy_percent: int


class Users(NamedTuple):
    """The processes on a device."""

    memory: dict[int, int | None]
    """MiB of each; None: not told."""
    clients: set[int]
    """Those of them that work through MPS."""


def users(part: Part) -> Users:
    """Merge the lists of compute, graphics and MPS processes: one may be on several.

    Raises:
        NVMLError: the device does not answer.
    """
    memory: dict[int, int | None] = {}
    clients: set[int] = set()
    for listing in _LISTINGS:
        for pid, used, *ids in known(nvml_lists.processes, listing, part.handle) or ():
            if part.instance is not None and tuple(ids) not in {part.instance, _NO_INSTANCE}:
                continue
            if listing == _OF_CLIENTS:
                clients.add(pid)
            if used == nvml_lists.NOT_AVAILABLE:
                memory.setdefault(pid, None)
            else:
                memory[pid] = max(memory.get(pid) or 0, used // MIB)
    return Users(memory, clients)


def busy_by_process(gpu: Gpu) -> dict[int, list[Sample]] | None:
    """Return each number's new samples; absent is idle, None: the driver does not tell.

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
    counted = newest = gpu.last_sample
    by_process: dict[int, list[Sample]] = {}
    for pid, at, busy, *_ in samples:
        # The ring buffer repeats old samples and fills with sentinels; KAI's metrics daemon has the
        # same three filters (shouldSkipProcessUtilizationSample).
        if at > counted and pid and busy <= 100:
            newest = max(newest, at)
            by_process.setdefault(pid, []).append(Sample(at, busy))
    gpu.last_sample = newest
    return by_process


def average(samples: Sequence[Sample], start: float = 0.0, end: float = math.inf) -> float:
    """Average a number's samples, 0..1, counting those outside of `start` to `end` as idle.

    The times, in Unix seconds, are those of one of several processes that had the number.
    """
    within = sum(s.busy_percent for s in samples if start <= s.at_us / 1e6 < end)
    return within / len(samples) / 100 if samples else 0.0
