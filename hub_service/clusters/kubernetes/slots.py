"""Number the devices that pods hold, as the core wants them.

For whole GPUs the API server knows only how many a pod has; which of a node's devices they are is
the device plugin's business. The core wants numbers, so each pod keeps what it was given for as
long as it is there: numbers that only count. Owned by the cluster; may be forgotten at any time.
"""

import itertools
from collections.abc import Iterable

from runai.hub_service.clusters.kubernetes.objects import Pod

__all__ = ["Slots"]


class Slots:
    """Device numbers by pod."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._held: dict[str, tuple[str, tuple[int, ...]]] = {}

    def hold(self, uid: str, node: str, devices: tuple[int, ...]) -> None:
        """Remember which devices a plan gave to a pod."""
        self._held[uid] = (node, devices)

    def held(self, pods: Iterable[Pod]) -> dict[str, tuple[int, ...]]:
        """Return the devices of each pod that holds some, by UID; forget everybody else."""
        holders = sorted(
            (p for p in pods if p.holds and p.gpus), key=lambda p: (p.bound or 0, p.uid)
        )
        taken: dict[str, set[int]] = {}
        kept: dict[str, tuple[int, ...]] = {}
        newcomers = []
        for pod in holders:
            node, devices = self._held.get(pod.uid, ("", ()))
            free = taken.setdefault(pod.node, set()).isdisjoint(devices)
            if node == pod.node and len(devices) == pod.gpus and free:
                kept[pod.uid] = devices
                taken[pod.node].update(devices)
            else:
                newcomers.append(pod)
        for pod in newcomers:
            kept[pod.uid] = _lowest(pod.gpus, taken[pod.node])
            taken[pod.node].update(kept[pod.uid])
        self._held = {pod.uid: (pod.node, kept[pod.uid]) for pod in holders}
        return kept


def _lowest(count: int, taken: set[int]) -> tuple[int, ...]:
    """Return the lowest free numbers, beyond what the node has where it has lost devices."""
    free = (number for number in itertools.count() if number not in taken)
    return tuple(itertools.islice(free, count))
