"""Conversion of a poll's readings to a report: one sample per workload and device.

Distinguishes zero, gap and unknown. Pure: `process_owners` has attributed the processes before.
"""

from collections import Counter as Tally
from collections.abc import Sequence
from typing import Any

from runai.hub_service.agent.readings import Poll, ProcessReading
from runai.hub_service.wire.reports import AgentAllocation, AgentReport


def report(node: str, poll: Poll, allocations: Sequence[AgentAllocation]) -> AgentReport:
    """Build a report with one sample for each workload and device that it holds.

    A failed device has no samples (a gap). A workload without a process on its device has a
    sample of zero. The report also lists processes of no workload, and processes on a device that
    their workload does not hold.
    """
    # A share without a UUID has no device to measure.
    allocated = {(a.workload, share.uuid) for a in allocations for share in a.shares if share.uuid}
    readings: dict[tuple[str, str], list[ProcessReading]] = {}
    for reading in poll.processes:
        readings.setdefault((reading.workload, reading.device), []).append(reading)
    tenants = Tally(device for _, device in readings)
    # A device's load is that of its only workload where the driver reports no load by process.
    alone = {d.device: d.utilization for d in poll.devices if tenants[d.device] == 1}
    # Validated once as a whole, each second: one model per line would cost twice as much.
    return AgentReport.model_validate(
        {
            "node": node,
            "at": poll.at,
            "interval": poll.interval,
            "devices": [
                {
                    "device": d.device,
                    "utilization": d.utilization,
                    "memory_mib": d.memory_mib,
                    "fault": d.fault,
                }
                for d in poll.devices
            ],
            "samples": [
                _sample(workload, device, readings.get((workload, device), ()), alone.get(device))
                for workload, device in sorted(allocated | readings.keys())
                if device not in poll.failed
            ],
            "processes": tuple(
                {
                    "device": p.device,
                    "pid": p.pid,
                    "workload": p.workload,
                    "worker": p.worker,
                    "account": p.account,
                    "name": p.name,
                    "notebook": p.notebook,
                    "utilization": p.utilization,
                    "memory_mib": p.memory_mib,
                }
                for p in poll.processes
                if p.device not in poll.failed
            ),
        }
    )


def _sample(
    workload: str, device: str, readings: Sequence[ProcessReading], alone: float | None
) -> dict[str, Any]:
    # No process: idle. Processes without figures from the driver: unknown.
    busy = [r.utilization for r in readings if r.utilization is not None]
    memory = [r.memory_mib for r in readings if r.memory_mib is not None]
    return {
        "workload": workload,
        "device": device,
        "utilization": alone if readings and not busy else min(1.0, sum(busy)),
        "memory_mib": None if readings and not memory else sum(memory),
    }
