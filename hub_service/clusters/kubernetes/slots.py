"""Number the devices that pods hold, as the core wants them.

Which of a node's devices a pod has is the device plugin's business, and is known later, if at all.
The core wants numbers, so each pod keeps what it was given for as long as it is there: numbers that
only count. Those who share a device have the number of its reservation, which stays theirs when the
reservation pod is lost. Owned by the cluster; may be forgotten at any time.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from runai.hub_service.clusters.kubernetes.objects import Pod
from runai.hub_service.scheduler.model import DeviceShare
from runai.hub_service.scheduler.quantity import WHOLE_GPU, MilliGpu

__all__ = ["Slots", "shares_of"]


@dataclass(slots=True)
class _Unit:
    """What has devices of its own: a pod with whole ones, or a reservation."""

    node: str
    count: int
    since: float


class Slots:
    """Device numbers by pod."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._held: dict[str, tuple[str, tuple[int, ...]]] = {}

    def hold(self, unit: str, node: str, devices: tuple[int, ...]) -> None:
        """Remember what a plan gave to a pod, by UID, or to a reservation, by name."""
        self._held[unit] = (node, devices)

    def held(self, pods: Iterable[Pod]) -> dict[str, tuple[int, ...]]:
        """Return the devices of each pod that holds some, by UID; forget everybody else."""
        of_pod: dict[str, tuple[str, ...]] = {}
        units: dict[str, _Unit] = {}
        for pod in filter(lambda pod: pod.holds, pods):
            names, count = _units(pod)
            of_pod |= {pod.uid: names} if names else {}
            for name in names:
                unit = units.setdefault(name, _Unit(pod.node, count, pod.bound or 0))
                unit.since = min(unit.since, pod.bound or 0)
        taken: dict[str, set[int]] = {}
        kept: dict[str, tuple[int, ...]] = {}
        newcomers = []
        for name, unit in sorted(units.items(), key=lambda item: (item[1].since, item[0])):
            node, devices = self._held.get(name, ("", ()))
            free = taken.setdefault(unit.node, set()).isdisjoint(devices)
            if node == unit.node and len(devices) == unit.count and free:
                kept[name] = devices
                taken[unit.node].update(devices)
            else:
                newcomers.append(name)
        for name in newcomers:
            unit = units[name]
            kept[name] = _lowest(unit.count, taken[unit.node])
            taken[unit.node].update(kept[name])
        self._held = {name: (unit.node, kept[name]) for name, unit in units.items()}
        return {uid: tuple(n for name in of for n in kept[name]) for uid, of in of_pod.items()}


def _units(pod: Pod) -> tuple[tuple[str, ...], int]:
    """Return what its devices are held by, and how many are held by each."""
    if pod.is_reservation:
        return (pod.name,), 1
    if pod.grant is not None:
        return pod.grant.reservations, 1
    return ((pod.uid,), pod.gpus) if pod.gpus else ((), 0)


def shares_of(pod: Pod, devices: Iterable[int]) -> tuple[DeviceShare, ...]:
    """Return how much of each of its devices a pod has."""
    if pod.grant is None:
        return tuple(DeviceShare(device, WHOLE_GPU) for device in devices)
    return tuple(
        DeviceShare(device, MilliGpu(milli))
        for device, milli in zip(devices, pod.grant.milli, strict=True)
    )


def _lowest(count: int, taken: set[int]) -> tuple[int, ...]:
    """Return the lowest free numbers, beyond what the node has where it has lost devices."""
    free = (number for number in itertools.count() if number not in taken)
    return tuple(itertools.islice(free, count))
