"""Find what NVML offers: GPUs, and the instances that MIG cuts them into, each a device of its own.

Knows names, UUIDs and memory. A GPU in MIG mode is left out, its instances stand for it. What they
do is read by `nvml`, `nvml_processes` and `nvml_health`.
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
"""The device, the driver or our account has no such figure: unknown, while all else goes on."""


class NvmlMissing(Exception):
    """No driver, or fewer devices than were asked for; its half sentence says which."""


@dataclass(frozen=True, slots=True)
class Part:
    """What can be allocated: a whole GPU, or one instance of it."""

    handle: Any
    device: Device
    instance: tuple[int, int] | None = None
    """Ids of the GPU instance and the compute instance; None for a whole GPU."""
    has_own_counters: bool = False
    """Whether it is the only compute instance of its GPU instance, which has the counters."""


@dataclass(slots=True)
class Gpu:
    """A physical GPU; without a handle it could not be opened."""

    uuid: str
    handle: Any
    parts: list[Part]
    last_sample: int = 0
    """Driver's time stamp (µs) of the newest sample that was counted."""


def open_gpus(number: int | None) -> list[Gpu]:
    """Return the GPUs that hold the first `number` devices (None: all), in the driver's order.

    Raises:
        NvmlMissing: there are none, or fewer than `number`.
        NVMLError: the library does not answer.
    """
    gpus: list[Gpu] = []
    wanted = number
    found = 0
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = _gpu(index, found)
        found += len(gpu.parts)
        gpu.parts = gpu.parts[:wanted]
        if wanted is not None:
            wanted -= len(gpu.parts)
        if gpu.parts:
            gpus.append(gpu)
    if found == 0 or (number is not None and found < number):
        raise NvmlMissing(f"NVML finds {found}")
    return gpus


def _gpu(index: int, first: int) -> Gpu:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        mode = known(pynvml.nvmlDeviceGetMigMode, handle)
        if mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
            return Gpu(uuid, handle, list(_instances(handle, first)))
        return Gpu(uuid, handle, [Part(handle, _device(handle, first))])
    except pynvml.NVMLError as error:
        # It keeps its number, so that the others keep theirs.
        name = f"GPU-{index}-that-does-not-answer"
        broken = Device(first, name, "GPU", 0, simulated=False, fault=f"NVML says: {error}")
        return Gpu(name, None, [Part(None, broken)])


def _instances(handle: Any, first: int) -> Iterator[Part]:  # noqa: ANN401  an opaque pointer
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
    of_gpu_instance = Tally(gpu_instance for _, (gpu_instance, _) in found)
    for index, (instance, ids) in enumerate(found, first):
        alone = of_gpu_instance[ids[0]] == 1
        yield Part(instance, _device(instance, index), ids, has_own_counters=alone)


def _device(handle: Any, index: int) -> Device:  # noqa: ANN401  an opaque pointer
    total, reserved, _ = _memory(handle)
    return Device(
        index,
        _text(pynvml.nvmlDeviceGetUUID(handle)),
        _text(pynvml.nvmlDeviceGetName(handle)),
        # Two halves must fit: the driver's own part is not for workloads.
        memory_mib=(total - reserved) // MIB,
        simulated=False,
    )


def _text(value: str | bytes) -> str:
    # Older bindings return bytes.
    return value.decode() if isinstance(value, bytes) else value


def known(call: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401  the library's structures
    """Call the library; None where there is no such figure."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in UNKNOWN:
            return None
        raise


def used_mib(handle: Any) -> int:  # noqa: ANN401  an opaque pointer
    """Return the MiB in use, the driver's own part left out where it is told apart."""
    return _memory(handle)[2] // MIB


def _memory(handle: Any) -> tuple[int, int, int]:  # noqa: ANN401  an opaque pointer
    """Return total, reserved and used bytes."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in UNKNOWN:
            raise
        # Before driver 510: what is reserved counts as used.
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.total), 0, int(memory.used)
    return int(memory.total), int(memory.reserved), int(memory.used)
