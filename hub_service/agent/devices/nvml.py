"""Device source for real GPUs, through NVML (package nvidia-ml-py, imported as `pynvml`).

Combines devices (`nvml_inventory`), processes (`nvml_processes`, `process_owners`) and faults
(`nvml_health`) in one poll. Requires the host's PID namespace. Same protocol and tests as
`simulated`.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pynvml

from runai.hub_service.agent.devices.nvml_gpm import GpmUtilization
from runai.hub_service.agent.devices.nvml_health import Health, fault_of
from runai.hub_service.agent.devices.nvml_inventory import (
    AllocatableDevice,
    Gpu,
    NvmlMissing,
    call_or_none,
    open_gpus,
    used_mib,
)
from runai.hub_service.agent.devices.nvml_processes import (
    MPS_SERVER,
    Sample,
    average,
    busy_by_process,
    device_processes,
)
from runai.hub_service.agent.processes.process_owners import ProcessOwner, ProcessOwners
from runai.hub_service.agent.readings import DeviceReading, Poll, ProcessReading
from runai.hub_service.model.device import Device
from runai.hub_service.wire.reports import AgentAllocation


class NvmlDevices:
    """The first `number` devices of the driver (None: all), in its order."""

    def __init__(self, number: int | None = None) -> None:
        """Load NVML and open the devices.

        Raises:
            NvmlMissing: no library, no driver, no device, or fewer than `number`.
        """
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlMissing(f"NVML says: {error}") from error
        self._open = True
        self._owners = ProcessOwners()
        self._last_poll_at = time.monotonic()
        self._health: Health | None = None
        self._gpm: GpmUtilization | None = None
        try:
            self._gpus = open_gpus(number)
            self._health = Health(self._gpus)
            self._gpm = GpmUtilization(self._gpus)
        except NvmlMissing:
            self.close()
            raise
        except pynvml.NVMLError as error:
            self.close()
            raise NvmlMissing(f"NVML says: {error}") from error
        for gpu in self._gpus:
            # Skip the samples in the driver's buffer: they precede the first interval.
            if gpu.handle is not None:
                with contextlib.suppress(pynvml.NVMLError):
                    busy_by_process(gpu)

    def devices(self) -> list[Device]:
        """Return the devices; their memory excludes the driver's reserve."""
        assert self._health is not None
        faults = self._health.faults()
        devices = [nvml_device.device for gpu in self._gpus for nvml_device in gpu.devices]
        return [replace(d, fault=faults.get(d.uuid, d.fault)) for d in devices]

    def close(self) -> None:
        """Shut NVML down; repeated calls do nothing."""
        if self._open:
            self._open = False
            if self._health is not None:
                self._health.close()
            if self._gpm is not None:
                self._gpm.close()
            pynvml.nvmlShutdown()

    def poll(self, allocations: Sequence[AgentAllocation]) -> Poll:
        """Read every device; an error of one device fails that device only."""
        assert self._health is not None
        self._owners.set_allocations(allocations)
        faults = self._health.faults()
        read = [reading for gpu in self._gpus for reading in self._read(gpu, faults)]
        processes = [process for _, found in read for process in found or ()]
        self._owners.retain({p.pid for p in processes})
        moment = time.monotonic()
        interval, self._last_poll_at = moment - self._last_poll_at, moment
        return Poll(
            at=time.time(),
            interval=interval,
            devices=tuple(total for total, _ in read),
            processes=tuple(processes),
            failed=frozenset(total.device for total, found in read if found is None),
        )

    def _read(
        self, gpu: Gpu, faults: Mapping[str, str]
    ) -> Iterator[tuple[DeviceReading, list[ProcessReading] | None]]:
        """Yield a GPU's devices with their processes; None if a device does not answer."""
        failure: pynvml.NVMLError | None = None
        busy: dict[int, list[Sample]] | None = None
        if gpu.handle is not None:
            try:
                busy = busy_by_process(gpu)
            except pynvml.NVMLError as error:
                failure = error
        for nvml_device in gpu.devices:
            fault = faults.get(nvml_device.device.uuid, nvml_device.device.fault)
            if gpu.handle is not None and failure is None:
                try:
                    total = self._read_total(gpu, nvml_device, fault)
                    yield total, self._read_processes(nvml_device, busy, total)
                except pynvml.NVMLError as error:
                    yield _failed_reading(nvml_device, fault_of(error) or fault), None
            else:
                yield (
                    _failed_reading(nvml_device, (fault_of(failure) if failure else "") or fault),
                    None,
                )

    def _read_total(self, gpu: Gpu, nvml_device: AllocatableDevice, fault: str) -> DeviceReading:
        """Read a device's utilization and memory in use."""
        rates = call_or_none(pynvml.nvmlDeviceGetUtilizationRates, nvml_device.handle)
        busy = None if rates is None or rates.gpu > 100 else rates.gpu / 100
        if busy is None and self._gpm is not None:
            busy = self._gpm.utilization_since_last(gpu, nvml_device)
        return DeviceReading(nvml_device.device.uuid, busy, used_mib(nvml_device.handle), fault)

    def _read_processes(
        self,
        nvml_device: AllocatableDevice,
        busy: dict[int, list[Sample]] | None,
        total: DeviceReading,
    ) -> list[ProcessReading]:
        """Read the memory and load of each process on a device."""
        memory, clients = device_processes(nvml_device)
        device, readings = nvml_device.device.uuid, []
        # A busy MPS server works for any of its clients: their load is unknown, not zero.
        has_busy_server = bool(clients) and any(
            self._is_busy_server(pid, s) for pid, s in (busy or {}).items()
        )
        # NVML reports load by process for whole GPUs only, so no other MIG instance is in `busy`.
        for pid in sorted(memory.keys() | (busy or {}).keys()):
            owner = self._owners.owner_of(pid)
            is_known = busy is not None and (
                pid in busy or not (has_busy_server and pid in clients)
            )
            samples, since = (busy or {}).get(pid, []) if is_known else None, 0.0
            if samples and (before := self._owners.previous_owner(pid)) is not None:
                # The PID was reused since the previous poll: split its samples at the new start.
                former, since = before
                if busy_until := average(samples, end=since):
                    readings.append(_reading(device, pid, former, busy_until, 0))
            load = None if samples is None else average(samples, since)
            readings.append(_reading(device, pid, owner, load, memory.get(pid)))
        if len(readings) == 1 and busy is None:
            # No load by process: the only process on the device causes all of its load.
            return [readings[0]._replace(utilization=total.utilization)]
        return readings

    def _is_busy_server(self, pid: int, samples: Sequence[Sample]) -> bool:
        """Return True if a process is an MPS server at work."""
        return average(samples) > 0 and self._owners.owner_of(pid).name.startswith(MPS_SERVER)


def _failed_reading(nvml_device: AllocatableDevice, fault: str) -> DeviceReading:
    """Return the reading of a device that did not answer."""
    return DeviceReading(nvml_device.device.uuid, None, None, fault)


def _reading(
    device: str, pid: int, owner: ProcessOwner, utilization: float | None, memory_mib: int | None
) -> ProcessReading:
    return ProcessReading(
        device=device,
        pid=pid,
        workload=owner.allocation.workload if owner.allocation else "",
        utilization=utilization,
        memory_mib=memory_mib,
        worker=owner.allocation.worker if owner.allocation else "",
        account=owner.account,
        name=owner.name,
        notebook=owner.notebook,
        created=owner.created,
    )
