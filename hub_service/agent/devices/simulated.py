"""Simulated devices for machines without a GPU, with load derived from workload processes.

One busy CPU core counts as one busy device, resident memory as device memory. Active workers on
one device share it equally, as with time-slicing on a real GPU. Same protocol and tests as `nvml`.
"""

import time
import uuid
from collections.abc import Mapping, Sequence

from runai.hub_service.agent.processes.process_table import ProcessTable, ProcessUse
from runai.hub_service.agent.readings import DeviceReading, Poll, ProcessReading
from runai.hub_service.model.device import Device
from runai.hub_service.wire.reports import AgentAllocation

MEMORY_MIB = 16384
"""Memory of each simulated device."""

CORES_PER_DEVICE = 1.0
"""CPU cores that fully load one device. A worker's load is spread over its devices."""

MEMORY_FACTOR = 1.0
"""Device memory per MiB of resident memory of a worker's processes, spread like the load."""


class SimulatedDevices:
    """Device source without hardware."""

    def __init__(self, number: int, *, node: str = "localhost") -> None:
        self._devices = [
            Device(index, _uuid(node, index), "Simulated GPU", MEMORY_MIB, simulated=True)
            for index in range(number)
        ]
        self._table = ProcessTable()
        self._releasing: dict[str, frozenset[tuple[int, float]]] = {}
        """Programs on devices at the release request, by workload that must release them."""
        self._last_poll_at = time.monotonic()

    def devices(self) -> list[Device]:
        """Return the devices; their UUIDs are the same at each start on the same node."""
        return list(self._devices)

    def close(self) -> None:
        """Clear the process table."""
        self._table.forget()

    def poll(self, allocations: Sequence[AgentAllocation]) -> Poll:
        """Derive each device's load from its workloads' processes since the previous poll.

        Processes are read only while a workload holds a device. The first poll with one reads the
        baseline of the counters and fails for all devices.
        """
        holders = [a for a in allocations if a.shares]
        uses: Sequence[ProcessUse] | None = []
        if holders:
            uses = self._on_devices(self._table.measure(holders), holders)
        else:
            self._table.forget()
        moment = time.monotonic()
        interval, self._last_poll_at = moment - self._last_poll_at, moment
        processes: tuple[ProcessReading, ...] = ()
        failed: frozenset[str] = frozenset()
        if uses is None:
            failed = frozenset(d.uuid for d in self._devices)
        elif interval > 0:
            processes = tuple(
                reading for d in self._devices for reading in _process_readings(d, uses, interval)
            )
        return Poll(
            at=time.time(),
            interval=interval,
            devices=tuple(_device_reading(d, processes, failed) for d in self._devices),
            processes=processes,
            failed=failed,
        )

    def _on_devices(
        self, uses: Sequence[ProcessUse] | None, holders: Sequence[AgentAllocation]
    ) -> Sequence[ProcessUse] | None:
        """Return the processes that use a device; None if the counters have no baseline."""
        if uses is None:
            return None
        self._releasing = {
            a.workload: self._releasing.get(a.workload)
            or frozenset(_program_key(u) for u in uses if u.allocation.workload == a.workload)
            for a in holders
            if a.release
        }
        return [
            use
            for use in uses
            # Programs started after the release request get no device from the start-up hook:
            # a restarted kernel, for example.
            if _program_key(use)
            in self._releasing.get(use.allocation.workload, {_program_key(use)})
            # Skip zombies: ended, not yet reaped by their parent.
            and (use.memory_mib or use.cpu_seconds)
        ]


def _program_key(use: ProcessUse) -> tuple[int, float]:
    return use.pid, use.owner.created


def _uuid(node: str, index: int) -> str:
    return f"GPU-sim-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{node}')}"


def _device_reading(
    device: Device, processes: Sequence[ProcessReading], failed: frozenset[str]
) -> DeviceReading:
    """Sum the processes on a device; a failed device has no figures."""
    if device.uuid in failed:
        return DeviceReading(device.uuid, None, None)
    readings = [p for p in processes if p.device == device.uuid]
    return DeviceReading(
        device.uuid,
        min(1.0, sum(p.utilization or 0.0 for p in readings)),
        min(MEMORY_MIB, sum(p.memory_mib or 0 for p in readings)),
    )


def _process_readings(
    device: Device, uses: Sequence[ProcessUse], interval: float
) -> list[ProcessReading]:
    """Divide one device among the processes of its workers."""
    device_uses = [
        (use, len(use.allocation.shares))
        for use in uses
        if any(share.uuid == device.uuid for share in use.allocation.shares)
    ]
    demands: dict[str, float] = {}
    for use, devices in device_uses:
        load = use.cpu_seconds / interval / CORES_PER_DEVICE / devices
        demands[use.allocation.worker] = demands.get(use.allocation.worker, 0.0) + load
    granted = equal_shares(demands, 1.0)
    requested_mib = sum(use.memory_mib * MEMORY_FACTOR / devices for use, devices in device_uses)
    memory_scale = min(1.0, MEMORY_MIB / requested_mib) if requested_mib else 1.0
    return [
        ProcessReading(
            device=device.uuid,
            pid=use.pid,
            workload=use.allocation.workload,
            utilization=(
                use.cpu_seconds
                / interval
                / CORES_PER_DEVICE
                / devices
                * granted[use.allocation.worker]
                / demands[use.allocation.worker]
                if demands[use.allocation.worker]
                else 0.0
            ),
            memory_mib=int(use.memory_mib * MEMORY_FACTOR / devices * memory_scale),
            worker=use.allocation.worker,
            account=use.owner.account,
            name=use.owner.name,
            notebook=use.owner.notebook,
            created=use.owner.created,
        )
        for use, devices in device_uses
    ]


def equal_shares(demands: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Return max-min fair shares of `capacity`: small demands in full, the rest shared equally.

    >>> equal_shares({"a": 0.25, "b": 2.0, "c": 0.5}, 1.0)
    {'a': 0.25, 'c': 0.375, 'b': 0.375}
    """
    granted: dict[str, float] = {}
    left = capacity
    for waiting, (name, demand) in enumerate(sorted(demands.items(), key=lambda d: (d[1], d[0]))):
        granted[name] = min(demand, left / (len(demands) - waiting))
        left -= granted[name]
    return granted
