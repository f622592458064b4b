"""Effects of device faults on workloads: history events and dropped reservations.

Pure. The scheduler places nothing new on a broken device (P5), and `capacity` checks it again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runai.hub_service.clusters.states.transition import Transition
from runai.hub_service.clusters.states.user_actions import unreserved
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ACTIVE, WorkloadId, WorkloadRecord


def with_faults(devices: Sequence[Device], faults: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the devices with the reported faults, by UUID; any other device is unchanged."""
    return tuple(replace(d, fault=faults.get(d.uuid, d.fault)) for d in devices)


def record_faults(
    node: str, before: Sequence[Device], after: Sequence[Device], rows: Iterable[WorkloadRecord]
) -> dict[WorkloadId, Transition]:
    """Add history events to workloads on devices that broke or recovered.

    Reservations of broken devices are dropped. Only changed workloads are returned.
    """
    changed = {
        new.index: new for old, new in zip(before, after, strict=True) if old.fault != new.fault
    }
    transitions: dict[WorkloadId, Transition] = {}
    for row in rows if changed else ():
        new_row = row
        events: list[tuple[str, str]] = []
        for worker in row.workers:
            changed_devices = [changed[s.device] for s in worker.devices if s.device in changed]
            if worker.node != node or not changed_devices:
                continue
            if worker.state in ACTIVE:
                events += [
                    event
                    for device in changed_devices
                    if (event := _event(node, device)) not in events
                ]
            elif worker.state == "reserved" and any(device.fault for device in changed_devices):
                new_row = unreserved(new_row, worker.index).row or new_row
                events.append(
                    ("fault", f"device {changed_devices[0].index} of {node}, held for it, broke")
                )
        if events:
            transitions[row.id] = Transition(new_row, tuple(events))
    return transitions


def _event(node: str, device: Device) -> tuple[str, str]:
    where = f"device {device.index} of {node}"
    if device.fault:
        return "fault", f"{where} is broken ({device.fault}): nothing new is placed on it"
    return "mended", f"{where} works again"
