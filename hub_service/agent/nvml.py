"""Real devices, through NVIDIA's management library (package nvidia-ml-py, imported as `pynvml`).

Knows the library's habits: ring buffers that repeat samples, sentinels for "not available", lists
of processes that overlap, errors that mean idle. Works in the PID namespace of the machine only.
The same protocol and tests as `simulated`.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from runai.hub_service.agent.devices import Device, DeviceReading, Poll, ProcessReading
from runai.hub_service.agent.owners import Owners, Whose
from runai.hub_service.api.reports import AgentAllocation

__all__ = ["NvmlDevices", "NvmlMissing"]

MIB = 1 << 20

_UNKNOWN = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
"""The device or the driver has no such figure: unknown, while everything else goes on."""

_IDLE = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS)
"""No process was busy; some libraries answer success without samples, which the binding raises."""


class NvmlMissing(Exception):
    """No driver, or fewer devices than were asked for; its half sentence says which."""


@dataclass(slots=True)
class _Gpu:
    handle: Any
    device: Device
    last_sample: int = 0
    """Driver's time stamp (µs) of the newest sample that was counted."""


class NvmlDevices:
    """The first `number` devices of the driver (None: all), in its order."""

    def __init__(self, number: int | None = None) -> None:
        """Load the library and find the devices.

        Raises:
            NvmlMissing: no library, no driver, no device, or fewer than `number`.
        """
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlMissing(f"NVML says: {error}") from error
        self._open = True
        self._owners = Owners()
        self._before = time.monotonic()
        try:
            self._gpus = _open_gpus(number)
        except NvmlMissing:
            self.close()
            raise
        except pynvml.NVMLError as error:
            self.close()
            raise NvmlMissing(f"NVML says: {error}") from error
        for gpu in self._gpus:
            # What ran before we came is not this interval's: skip the samples that are there.
            with contextlib.suppress(pynvml.NVMLError):
                _busy_by_process(gpu)

    def devices(self) -> list[Device]:
        """Return the devices with the memory that the driver does not keep for itself."""
        return [gpu.device for gpu in self._gpus]

    def close(self) -> None:
        """Let go of the library."""
        if self._open:
            self._open = False
            pynvml.nvmlShutdown()

    def poll(self, allocations: Sequence[AgentAllocation]) -> Poll:
        """Read every device; one that does not answer fails alone."""
        self._owners.learn(allocations)
        devices: list[DeviceReading] = []
        processes: list[ProcessReading] = []
        failed: set[str] = set()
        for gpu in self._gpus:
            try:
                mine = self._processes(gpu)
                devices.append(_total(gpu))
            except pynvml.NVMLError as error:
                failed.add(gpu.device.uuid)
                lost = error.value in {
                    pynvml.NVML_ERROR_GPU_IS_LOST,
                    pynvml.NVML_ERROR_RESET_REQUIRED,
                }
                fault = f"NVML says: {error}" if lost else ""
                devices.append(DeviceReading(gpu.device.uuid, None, None, fault))
            else:
                processes.extend(_alone(mine, devices[-1]))
        self._owners.retain({p.pid for p in processes})
        moment = time.monotonic()
        interval, self._before = moment - self._before, moment
        return Poll(time.time(), interval, tuple(devices), tuple(processes), frozenset(failed))

    def _processes(self, gpu: _Gpu) -> list[ProcessReading]:
        memory = _memory_by_process(gpu.handle)
        busy = _busy_by_process(gpu)
        return [
            _reading(
                gpu.device.uuid,
                pid,
                self._owners.whose(pid),
                None if busy is None else busy.get(pid, 0.0),
                memory.get(pid),
            )
            for pid in sorted(memory.keys() | (busy or {}).keys())
        ]


def _open_gpus(number: int | None) -> list[_Gpu]:
    found = pynvml.nvmlDeviceGetCount()
    if found == 0 or (number is not None and found < number):
        raise NvmlMissing(f"NVML finds {found}")
    return [_gpu(index) for index in range(found if number is None else number)]


def _gpu(index: int) -> _Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    total, reserved, _ = _memory(handle)
    return _Gpu(
        handle,
        Device(
            index,
            _text(pynvml.nvmlDeviceGetUUID(handle)),
            _text(pynvml.nvmlDeviceGetName(handle)),
            # Two halves must fit: the driver's own part is not for workloads.
            memory_mib=(total - reserved) // MIB,
            simulated=False,
        ),
    )


def _text(value: str | bytes) -> str:
    # Older bindings return bytes.
    return value.decode() if isinstance(value, bytes) else value


def _memory(handle: Any) -> tuple[int, int, int]:  # noqa: ANN401  an opaque pointer of the library
    """Return total, reserved and used bytes."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in _UNKNOWN:
            raise
        # Before driver 510: what is reserved counts as used.
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.total), 0, int(memory.used)
    return int(memory.total), int(memory.reserved), int(memory.used)


def _total(gpu: _Gpu) -> DeviceReading:
    used = _memory(gpu.handle)[2]
    # A MIG parent has no utilization of its own: unknown.
    rates = _known(pynvml.nvmlDeviceGetUtilizationRates, gpu.handle)
    return DeviceReading(
        gpu.device.uuid,
        None if rates is None or rates.gpu > 100 else rates.gpu / 100,
        used // MIB,
    )


def _known(call: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401  the library's structures
    """Call the library; None where the device or the driver has no such figure."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _UNKNOWN:
            return None
        raise


def _memory_by_process(handle: Any) -> dict[int, int | None]:  # noqa: ANN401  an opaque pointer of the library
    """Merge the lists of compute, graphics and MPS processes: one process may be on several."""
    memory: dict[int, int | None] = {}
    for listing in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
    ):
        for process in _known(listing, handle) or ():
            used = process.usedGpuMemory
            told = None if used is None else int(used) // MIB
            memory[process.pid] = max(
                (m for m in (memory.get(process.pid), told) if m is not None), default=None
            )
    return memory


def _busy_by_process(gpu: _Gpu) -> dict[int, float] | None:
    """Average each process's new samples; absent is idle, None is that the driver does not tell."""
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(gpu.handle, gpu.last_sample)
    except pynvml.NVMLError as error:
        if error.value in _IDLE:
            return {}
        if error.value in _UNKNOWN:
            return None
        raise
    # The ring buffer repeats old samples and fills with sentinels; KAI's metrics daemon has the
    # same three filters (shouldSkipProcessUtilizationSample).
    new = [s for s in samples if s.pid and s.smUtil <= 100 and s.timeStamp > gpu.last_sample]
    gpu.last_sample = max((s.timeStamp for s in new), default=gpu.last_sample)
    by_process: dict[int, list[int]] = {}
    for sample in new:
        by_process.setdefault(sample.pid, []).append(sample.smUtil)
    return {pid: sum(busy) / len(busy) / 100 for pid, busy in by_process.items()}


def _reading(
    device: str, pid: int, whose: Whose, utilization: float | None, memory_mib: int | None
) -> ProcessReading:
    return ProcessReading(
        device=device,
        pid=pid,
        workload=whose.owner.workload if whose.owner else "",
        utilization=utilization,
        memory_mib=memory_mib,
        worker=whose.owner.worker if whose.owner else "",
        account=whose.account,
        name=whose.name,
        created=whose.created,
    )


def _alone(processes: Sequence[ProcessReading], total: DeviceReading) -> Sequence[ProcessReading]:
    """Give a lone process the whole device's figure where the driver tells none by process."""
    if len(processes) != 1 or processes[0].utilization is not None:
        return processes
    return [replace(processes[0], utilization=total.utilization)]
