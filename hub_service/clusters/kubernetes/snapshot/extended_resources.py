"""Extended resources of nodes besides GPUs, CPU and memory: MIG devices, network cards, disk.

Device plugins count them and the core does not: a pod may go where enough is left. So this module
keeps a plan from binding more pods to a node than its kubelet would admit, and keeps all workers of
a gang from being offered the same last ones. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode, Pod
from runai.hub_service.clusters.kubernetes.objects.node_affinity import Demands
from runai.hub_service.scheduler.model.snapshot import Start


def left_on(machines: Sequence[KubeNode], pods: Iterable[Pod]) -> Sequence[KubeNode]:
    """Return the nodes with their extended resources minus the use of all schedulers' pods."""
    taken: Mapping[str, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        if pod.demands.stock and pod.uses_node:
            taken[pod.node].update(dict(pod.demands.stock))
    if not taken:
        return machines
    return [
        replace(machine, stock=_less(machine.stock, taken[machine.name]))
        if machine.name in taken
        else machine
        for machine in machines
    ]


def too_many(
    starts: Iterable[tuple[Start, Pod]],
    machines: Mapping[str, KubeNode],
    is_enough: Callable[[str, int], bool],
) -> Mapping[str, str]:
    """Return the workers that earlier workers of the plan leave too little for, and why.

    `machines` have what is left on them. `is_enough` returns True if a workload can run with so
    many of its starts; if it cannot, it uses nothing, and all of its workers are returned.
    """
    taken: Mapping[str, Counter[str]] = defaultdict(Counter)
    of_workload: dict[str, list[tuple[Start, Pod]]] = {}
    for start, pod in starts:
        of_workload.setdefault(start.workload, []).append((start, pod))
    found: dict[str, str] = {}
    for workload, wanted in of_workload.items():
        mine: Mapping[str, Counter[str]] = defaultdict(Counter)
        without: dict[str, str] = {}
        for start, pod in wanted:
            node, machine = start.node, machines.get(start.node)
            if not pod.demands.stock or machine is None:
                continue
            left = _less(_less(machine.stock, taken[node]), mine[node])
            lacks = next((r for r, n in pod.demands.stock if left.get(r, 0) < n), "")
            if lacks:
                without[start.worker] = f"{node} has too little {lacks} left for it"
            else:
                mine[node].update(dict(pod.demands.stock))
        if without and not is_enough(workload, len(wanted) - len(without)):
            why = next(iter(without.values()))
            without = {start.worker: without.get(start.worker, why) for start, _pod in wanted}
            mine = {}
        for node, amounts in mine.items():
            taken[node].update(amounts)
        found |= without
    return found


def is_crowd(pods: Iterable[Pod]) -> bool:
    """Return True if several of these pods wait for extended resources together."""
    return sum(bool(pod.demands.stock and not pod.node) for pod in pods) > 1


def too_few_for_all(pods: Iterable[Pod]) -> str:
    """Return which resources pods that wait together may lack although one pod fits; or ""."""
    asking = [pod for pod in pods if pod.demands.stock and not pod.node]
    names = sorted({name for pod in asking for name, _amount in pod.demands.stock})
    return f": too little {', '.join(names)} for all of its workers" if len(asking) > 1 else ""


def dealt(
    pods: Iterable[Pod],
    machines: Iterable[KubeNode],
    allowed: Mapping[Demands, Container[str]],
    free: Mapping[str, int],
    promised: Mapping[str, str],
) -> Mapping[str, Sequence[str]]:
    """Return the nodes for each of the workers that wait together, by place.

    A node with enough for two of them is offered to two. Nodes with `free` devices come first: as
    many workers as can start there together get one each. `allowed` are the nodes that one worker
    with such demands may use; `promised` is the nominated node of a worker.
    """
    asking = list(pods)
    found: dict[str, list[str]] = {pod.place: [] for pod in asking}
    most: Counter[str] = Counter()
    for pod in asking:
        most |= Counter(dict(pod.demands.stock))
    gpus = max((pod.gpus for pod in asking), default=0)
    now: list[str] = []
    later: list[str] = []
    takers: dict[str, list[Pod]] = {}
    for machine in machines:
        name = machine.name
        here = [pod for pod in asking if name in allowed[pod.demands]]
        room = max(1, _times(machine, most.items()))
        # Workers nominated to this node go first.
        for pod in here if room >= len(here) else _promised(here, name, promised)[:room]:
            found[pod.place].append(name)
        takers[name] = [pod for pod in here if name not in found[pod.place]]
        room = min(len(takers[name]), room - (len(here) - len(takers[name])))
        fits = min(room, max(0, free.get(name, 0)) // gpus) if gpus else room
        now += [name] * fits
        later += [name] * (room - fits)
    for name in (*now, *later):
        of = takers[name]
        # The worker with the fewest nodes goes first: each gets one before any gets two.
        taker = min(of, key=lambda pod: (len(found[pod.place]), pod.place))
        found[taker.place].append(name)
        of.remove(taker)
    return found


def tightest(machines: Iterable[KubeNode], stock: Iterable[tuple[str, int]]) -> int:
    """Return the smallest number of pods with this demand that any node with room fits.

    So many pods or fewer cannot block each other, wherever they go.
    """
    asked = tuple(stock)
    rooms = filter(None, (_times(machine, asked) for machine in machines))
    return min(rooms, default=0)


def _times(machine: KubeNode, stock: Iterable[tuple[str, int]]) -> int:
    return max(0, min(machine.stock.get(name, 0) // amount for name, amount in stock))


def _promised(pods: Iterable[Pod], node: str, promised: Mapping[str, str]) -> list[Pod]:
    return [pod for pod in pods if promised.get(pod.place) == node]


def _less(stock: Mapping[str, int], taken: Mapping[str, int]) -> Mapping[str, int]:
    return {name: amount - taken.get(name, 0) for name, amount in stock.items()}
