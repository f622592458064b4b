"""Lost devices: those that nodes have but do not offer, while their pods may run on.

Allocatable GPUs fall to 0 for some seconds at each restart of a device plugin, a kubelet or a
driver, and by one when a device breaks. The pods there run on, and stopping one gives no device: as
many devices in use count as lost as the node offers too few. The kubelet does not name them, so we
guess, and keep the guess even after the pods end, so that plans agree with each other. If the guess
was wrong, the kubelet rejects the next pod; from then on the free devices count as lost.

A job was stopped for each reserved device: it counts as in use, and is the last to count as lost.
If it is lost too, or its node rejects pods, the reservation stands for a minute.
"""

import time
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode

DAY_S: Final = 86_400
RETURNS_WITHIN_S: Final = 60.0
"""Seconds without its device, as at a restart, after which a reservation ends."""


class NodeDevices(NamedTuple):
    """Devices of a node: how many, the unusable ones, and why it offers fewer than it has."""

    total: int
    lost: AbstractSet[int]
    returning: AbstractSet[int]
    """Reserved devices that have been lost for less than RETURNS_WITHIN_S."""
    loss: str


@dataclass(slots=True)
class _Loss:
    """Previous observations of one node."""

    total: int = 0
    """GPUs that it had when it last reported any."""
    since: float | None = None
    """Time at which it was first seen to offer fewer; None: it offers all."""
    in_use: frozenset[int] = frozenset()
    """Lost devices that were in use or reserved when the node ceased to offer them."""
    lost_since: dict[int, float] = field(default_factory=dict)
    """Time at which each reserved device was first seen to be lost."""


class LostDevices:
    """Lost devices of each node; the state may be lost at any time."""

    def __init__(self) -> None:
        """Begin with no node seen."""
        self._nodes: dict[str, _Loss] = {}

    def retain(self, nodes: Collection[str]) -> None:
        """Drop nodes that are gone."""
        self._nodes = {name: loss for name, loss in self._nodes.items() if name in nodes}

    def update(
        self,
        node: KubeNode,
        in_use: AbstractSet[int],
        faulty: Collection[int],
        now: float,
        *,
        reserved: AbstractSet[int] = frozenset(),
        rejects: bool,
    ) -> NodeDevices:
        """Guess which devices a node has lost, as before where possible; return its devices.

        `faulty` are known to be broken; `reserved` wait for their claimants. A node that `rejects`
        pods has shown that the guess was wrong, and has no usable device.
        """
        in_use = in_use | reserved
        offered = node.gpus
        if 0 < offered == node.most_gpus > max(in_use, default=-1) and not rejects:
            # Nearly always: it offers all that it has.
            self._nodes[node.name] = _Loss(total=offered)
            return NodeDevices(offered, frozenset(), frozenset(), "")
        loss = self._nodes.setdefault(node.name, _Loss())
        # Some minutes after its device plugin has gone, a kubelet reports a capacity of 0.
        loss.total = node.most_gpus or loss.total or len(in_use)
        count = max(loss.total, 1 + max(in_use, default=-1))
        lacking = max(0, len(in_use) - offered)

        def rank(number: int) -> tuple[bool, bool, bool, int]:
            """Sort first what is most likely lost; reserved devices last."""
            return number not in in_use, number not in faulty, number in reserved, number

        previous = () if rejects else sorted((n for n in loss.in_use if n < count), key=rank)
        confirmed = previous[: max(lacking, loss.total - offered)]
        further = sorted(in_use - set(confirmed), key=rank)
        further_count = max(0, lacking - len(in_use & set(confirmed)))
        loss.in_use = frozenset([*confirmed, *further[:further_count]])
        free = [n for n in range(count) if n not in in_use and n not in loss.in_use]
        lost_free_count = max(0, count - offered - len(loss.in_use))
        lost = loss.in_use.union(free[max(0, len(free) - lost_free_count) :])
        if rejects:
            lost = frozenset(range(count))
        may_return = (lost & reserved).difference(faulty)
        loss.lost_since = {n: loss.lost_since.get(n, now) for n in may_return}
        if offered >= loss.total:
            loss.since = None
        elif loss.since is None:
            loss.since = now
        returning = {n for n in may_return if now < loss.lost_since[n] + RETURNS_WITHIN_S}
        return NodeDevices(count, lost, returning, _loss_sentence(node.name, offered, loss, now))


def _loss_sentence(node: str, offered: int, loss: _Loss, now: float) -> str:
    """Return since when a node offers fewer devices than it has, or ""."""
    if loss.since is None:
        return ""
    time_format = "%H:%M" if now < loss.since + DAY_S else "%d %b %H:%M"
    since = time.strftime(time_format, time.localtime(loss.since))
    what = f"{offered} of {loss.total} GPU{'' if loss.total == 1 else 's'}"
    return f"node {node} offers {what} since {since} (device plugin or driver)"
