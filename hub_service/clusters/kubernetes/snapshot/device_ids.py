"""Device numbers of pods, as the core needs them.

The device plugin chooses a pod's physical devices, and we learn them later, if at all. The core
needs numbers, so each pod keeps an arbitrary number per device while it exists. Pods that share a
device have the number of its reservation, which they keep even if the reservation pod is lost. The
numbers may be lost at any time.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare


@dataclass(slots=True)
class _Unit:
    """A holder of whole devices: a pod or a reservation; `since` is when it was bound."""

    node: str
    count: int
    since: float


class DeviceIds:
    """Device numbers by pod."""

    def __init__(self) -> None:
        """Begin without numbers."""
        self._assigned: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._last_result: tuple[Sequence[Pod], dict[str, tuple[int, ...]]] = ((), {})
        """Pods and result of the last call of `update`; reset when numbers are assigned."""

    def assign(self, unit: str, node: str, devices: tuple[int, ...]) -> None:
        """Store the numbers assigned to a pod (by UID) or reservation (by name)."""
        self._assigned[unit] = (node, devices)
        self._last_result = ((), {})

    def update(self, pods: Sequence[Pod]) -> Mapping[str, tuple[int, ...]]:
        """Assign numbers to new devices, drop those of other pods; return all by pod's UID."""
        if pods != self._last_result[0]:  # a cycle calls this several times with the same pods
            self._last_result = (pods, self._update(pods))
        return self._last_result[1]

    def _update(self, pods: Iterable[Pod]) -> dict[str, tuple[int, ...]]:
        """Assign numbers to all units that hold devices of the pods."""
        units_by_pod: dict[str, tuple[str, ...]] = {}
        units: dict[str, _Unit] = {}
        for pod in pods:
            if not pod.node or pod.is_finished:
                continue
            names, count = _units_of(pod)
            if names:
                units_by_pod[pod.uid] = names
            since = pod.bound or 0
            for name in names:
                if (unit := units.get(name)) is None:
                    units[name] = _Unit(pod.node, count, since)
                else:
                    unit.since = min(unit.since, since)
        numbers = self._stored_numbers(units) or self._assign_numbers(units)
        self._assigned = {name: (unit.node, numbers[name]) for name, unit in units.items()}
        return {
            uid: numbers[names[0]]  # nearly all pods are one unit: no new tuple for each
            if len(names) == 1
            else tuple(number for name in names for number in numbers[name])
            for uid, names in units_by_pod.items()
        }

    def _stored_numbers(self, units: Mapping[str, _Unit]) -> dict[str, tuple[int, ...]] | None:
        """Return the stored numbers of all units; None if any of them no longer fits."""
        numbers, used = {}, set[tuple[str, int]]()
        count = 0
        for name, unit in units.items():
            node, devices = self._assigned.get(name, ("", ()))
            if node != unit.node or len(devices) != unit.count:
                return None
            numbers[name] = devices
            count += unit.count
            for device in devices:
                used.add((node, device))
        return numbers if len(used) == count else None

    def _assign_numbers(self, units: Mapping[str, _Unit]) -> dict[str, tuple[int, ...]]:
        """Return numbers for all units; older units keep theirs, new ones get the lowest."""
        used: dict[str, set[int]] = {}
        numbers: dict[str, tuple[int, ...]] = {}
        unassigned = []
        for name, unit in sorted(units.items(), key=lambda item: (item[1].since, item[0])):
            node, devices = self._assigned.get(name, ("", ()))
            are_free = used.setdefault(unit.node, set()).isdisjoint(devices)
            if node == unit.node and len(devices) == unit.count and are_free:
                numbers[name] = devices
                used[unit.node].update(devices)
            else:
                unassigned.append(name)
        for name in unassigned:
            unit = units[name]
            numbers[name] = _lowest(unit.count, used[unit.node])
            used[unit.node].update(numbers[name])
        return numbers


def _units_of(pod: Pod) -> tuple[tuple[str, ...], int]:
    """Return the units that hold a pod's devices, and the device count of each."""
    if pod.is_reservation:
        return (pod.name,), 1
    if pod.grant is not None:
        return pod.grant.reservations, 1
    return ((pod.uid,), pod.gpus) if pod.gpus else ((), 0)


def shares_of(pod: Pod, devices: Iterable[int]) -> tuple[DeviceShare, ...]:
    """Return a pod's share of each of its devices."""
    if pod.grant is None:
        return tuple(DeviceShare(device, WHOLE_GPU) for device in devices)
    return tuple(
        DeviceShare(device, MilliGpu(milli))
        for device, milli in zip(devices, pod.grant.milli, strict=True)
    )


def _lowest(count: int, used: set[int]) -> tuple[int, ...]:
    """Return the lowest free numbers, beyond the node's count if it has lost devices."""
    free = (number for number in itertools.count() if number not in used)
    return tuple(itertools.islice(free, count))
