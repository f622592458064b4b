"""What nodes have beside GPUs, CPU and memory: parts that the driver made, network cards, disk.

Their device plugins count them, and the core knows nothing of them: a pod may go where enough is
left. Two that take the last ones at the same moment the kubelet tells apart. Pure; called by
`picture` and `scheduling` with all that there is.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runai.hub_service.clusters.kubernetes.objects import Machine, Pod

__all__ = ["left_on"]


def left_on(machines: Sequence[Machine], pods: Iterable[Pod]) -> Sequence[Machine]:
    """Return the machines with what pods, whoever schedules them, have left of their stock."""
    taken: Mapping[str, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        if pod.demands.stock and pod.holds:
            taken[pod.node].update(dict(pod.demands.stock))
    if not taken:
        return machines
    return [
        replace(machine, stock=_less(machine.stock, taken[machine.name]))
        if machine.name in taken
        else machine
        for machine in machines
    ]


def _less(stock: Mapping[str, int], taken: Mapping[str, int]) -> Mapping[str, int]:
    return {name: amount - taken.get(name, 0) for name, amount in stock.items()}
