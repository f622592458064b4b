"""Inventory of GPUs and MIG instances from NVML: names, UUIDs, memory.

Each whole GPU is a device. A GPU in MIG mode is no device itself; each of its instances is one.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pynvml

from runai.hub_service.model.device import Device

MIB = 1 << 20

UNKNOWN = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
)
"""Errors that mean "unknown", and fail neither the device nor the poll. The device or the driver
lacks a figure, or our account may not read it."""


class NvmlMissing(Exception):
    """Error: no NVIDIA driver, or fewer devices than requested.

    The message is a clause without full stop, for use in another message.
    """


@dataclass(frozen=True, slots=True)
class AllocatableDevice:
    """One allocatable device: a whole GPU, or a MIG instance."""

    handle: Any
    device: Device
    instance: tuple[int, int] | None = None
    """Ids of the GPU instance and the compute instance; None for a whole GPU."""
    has_own_counters: bool = False
    """True for the only compute instance of a GPU instance: counters are per GPU instance."""


@dataclass(slots=True)
class Gpu:
    """One physical GPU; its handle is None if NVML could not open it."""

    uuid: str
    handle: Any
    devices: list[AllocatableDevice]
    last_sample: int = 0
    """Driver's time stamp (µs) of the newest counted sample."""


def open_gpus(number: int | None) -> list[Gpu]:
    """Return the GPUs that hold the first `number` devices (None: all), in the driver's order.

    Raises:
        NvmlMissing: there are none, or fewer than `number`.
        NVMLError: the library does not answer.
    """
    gpus: list[Gpu] = []
    remaining = number
    found = 0
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = _open_gpu(index, found)
        found += len(gpu.devices)
        gpu.devices = gpu.devices[:remaining]
        if remaining is not None:
            remaining -= len(gpu.devices)
        if gpu.devices:
            gpus.append(gpu)
    if found == 0 or (number is not None and found < number):
        raise NvmlMissing(f"NVML finds {found}")
    return gpus


def _open_gpu(index: int, first_index: int) -> Gpu:
    """Open a GPU, whose devices are numbered from `first_index`; one that is broken has one."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        mode = call_or_none(pynvml.nvmlDeviceGetMigMode, handle)
        if mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
            return Gpu(uuid, handle, list(_mig_instances(handle, first_index)))
        return Gpu(uuid, handle, [AllocatableDevice(handle, _device(handle, first_index))])
    except pynvml.NVMLError as error:
        # A broken GPU keeps its index: the indices of all later devices depend on it.
        name = f"GPU-{index}-that-does-not-answer"
        device = Device(first_index, name, "GPU", 0, simulated=False, fault=f"NVML says: {error}")
        return Gpu(name, None, [AllocatableDevice(None, device)])


def _mig_instances(handle: Any, first_index: int) -> Iterator[AllocatableDevice]:  # noqa: ANN401  an opaque pointer
    """Yield the MIG instances of a GPU, numbered from `first_index`."""
    found: list[tuple[Any, tuple[int, int]]] = []
    for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except pynvml.NVMLError as error:
            if error.value in {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}:
                continue  # an empty slot
            raise
        ids = (
            int(pynvml.nvmlDeviceGetGpuInstanceId(instance)),
            int(pynvml.nvmlDeviceGetComputeInstanceId(instance)),
        )
        found.append((instance, ids))
    compute_instances = Tally(gpu_instance for _, (gpu_instance, _) in found)
    for index, (instance, ids) in enumerate(found, first_index):
        is_only = compute_instances[ids[0]] == 1
        yield AllocatableDevice(instance, _device(instance, index), ids, has_own_counters=is_only)


def _device(handle: Any, index: int) -> Device:  # noqa: ANN401  an opaque pointer
    total, reserved, _ = _memory(handle)
    return Device(
        index,
        _text(pynvml.nvmlDeviceGetUUID(handle)),
        _text(pynvml.nvmlDeviceGetName(handle)),
        # Without the driver's reserve, so that two halves fit.
        memory_mib=(total - reserved) // MIB,
        simulated=False,
    )


def _text(value: str | bytes) -> str:
    # Older bindings return bytes.
    return value.decode() if isinstance(value, bytes) else value


def call_or_none(call: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401  the library's structures
    """Call NVML; return None if the figure is unknown (`UNKNOWN`)."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in UNKNOWN:
            return None
        raise


def used_mib(handle: Any) -> int:  # noqa: ANN401  an opaque pointer
    """Return the MiB in use, without the driver's reserve if NVML reports it separately."""
    return _memory(handle)[2] // MIB


def _memory(handle: Any) -> tuple[int, int, int]:  # noqa: ANN401  an opaque pointer
    """Return total, reserved and used bytes."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in UNKNOWN:
            raise
        # Drivers before 510 count reserved memory as used.
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.total), 0, int(memory.used)
    return int(memory.total), int(memory.reserved), int(memory.used)
