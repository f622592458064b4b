"""Give the devices of a node their identities: which UUID the core's number stands for.

A number only counts until somebody has the device and its agent, or its reservation, says which one
it is. What nobody has is named in the order in which the agent counts. Pure; called by `cluster`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from runai.hub_service.agent.devices import Device
from runai.hub_service.clusters.kubernetes.objects import Machine, Pod


def named(
    pods: Iterable[Pod],
    slots: Mapping[str, tuple[int, ...]],
    devices_of: Callable[[Pod], Sequence[str]],
) -> dict[str, dict[int, str]]:
    """Return the UUIDs of devices that pods have, by node and number, as far as they are known."""
    found: dict[str, dict[int, str]] = {}
    for pod in pods:
        numbers, uuids = slots.get(pod.uid, ()), devices_of(pod)
        if len(numbers) == len(uuids):
            found.setdefault(pod.node, {}).update(zip(numbers, uuids, strict=True))
    return found


def inventory(
    machine: Machine, known: Mapping[int, str], counted: Sequence[Device]
) -> Sequence[Device]:
    """Return the devices of a node by number; `counted` are those that its agent has found."""
    count = max(machine.gpus, len(counted), 1 + max(known, default=-1))
    found = {device.uuid: device for device in counted}
    rest = (uuid for uuid in found if uuid not in known.values())
    drawn = []
    for number in range(count):
        uuid = known.get(number) or next(rest, "")
        device = found.get(uuid)
        drawn.append(
            Device(
                number,
                uuid or f"{machine.name}/{number}",
                machine.gpu_type or (device.name if device else "GPU"),
                machine.gpu_memory_mib or (device.memory_mib if device else 0),
                simulated=device is not None and device.simulated,
                fault=device.fault if device else "",
            )
        )
    return drawn
