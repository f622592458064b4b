"""A poll's readings as the report that is sent: one sample for each workload and device.

Knows what is a zero, a gap and unknown. Whose each process is was found out before (`owners`).
Pure; called by the loop.
"""

from collections import Counter as Tally
from collections.abc import Sequence
from typing import Any

from runai.hub_service.agent.readings import Poll, ProcessReading
from runai.hub_service.wire.agent_reports import AgentAllocation, AgentReport


def report(node: str, poll: Poll, allocations: Sequence[AgentAllocation]) -> AgentReport:
    """Turn a poll into what is sent: one sample for each workload and device that it holds.

    A device that failed has no samples (a gap); a holder without a process there is a zero.
    Processes that belong to no workload, or use a device that theirs does not hold, are told too.
    """
    # What the service cannot name, nobody can measure.
    held = {(a.workload, share.uuid) for a in allocations for share in a.shares if share.uuid}
    seen: dict[tuple[str, str], list[ProcessReading]] = {}
    for reading in poll.processes:
        seen.setdefault((reading.workload, reading.device), []).append(reading)
    tenants = Tally(device for _, device in seen)
    # Where no load is told by process, a device's load is that of the only one who is there.
    alone = {d.device: d.utilization for d in poll.devices if tenants[d.device] == 1}
    # Checked once as a whole, each second: a model for each line would cost twice as much.
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
                _sample(workload, device, seen.get((workload, device), ()), alone.get(device))
                for workload, device in sorted(held | seen.keys())
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
    # No process: idle. Processes of which the driver tells nothing: unknown.
    busy = [r.utilization for r in readings if r.utilization is not None]
    held = [r.memory_mib for r in readings if r.memory_mib is not None]
    return {
        "workload": workload,
        "device": device,
        "utilization": alone if readings and not busy else min(1.0, sum(busy)),
        "memory_mib": None if readings and not held else sum(held),
    }
