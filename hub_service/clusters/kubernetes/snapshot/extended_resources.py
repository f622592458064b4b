"""Extended resources of nodes besides GPUs, CPU and memory: MIG devices, network cards, disk.

Device plugins count them and the core does not: a pod may go where enough is left. So this module
keeps a plan from binding more pods to a node than its kubelet would admit, and keeps all workers of
a gang from being offered the same last ones. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode, Pod
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import Demands
from runai.hub_service.scheduler.model.snapshot import Start


def with_free_stock(nodes: Sequence[KubeNode], pods: Iterable[Pod]) -> Sequence[KubeNode]:
    """Return the nodes with their extended resources minus the use of all schedulers' pods."""
    taken: Mapping[str, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        if pod.demands.stock and pod.uses_node:
            taken[pod.node].update(dict(pod.demands.stock))
    if not taken:
        return nodes
    return [
        replace(node, stock=_subtract(node.stock, taken[node.name])) if node.name in taken else node
        for node in nodes
    ]


def overcommitted_workers(
    starts: Iterable[tuple[Start, Pod]],
    nodes: Mapping[str, KubeNode],
    is_enough: Callable[[str, int], bool],
) -> Mapping[str, str]:
    """Return why workers cannot start, by worker: the starts before theirs leave too little.

    `nodes` have what is left on them. `is_enough(workload, starts)` returns True if the workload
    can run with so many of its starts; if it cannot, none of its workers can start.
    """
    taken: Mapping[str, Counter[str]] = defaultdict(Counter)
    starts_by_workload: dict[str, list[tuple[Start, Pod]]] = {}
    for start, pod in starts:
        starts_by_workload.setdefault(start.workload, []).append((start, pod))
    reasons: dict[str, str] = {}
    for workload, starting in starts_by_workload.items():
        own_use: Mapping[str, Counter[str]] = defaultdict(Counter)
        lacking: dict[str, str] = {}
        for start, pod in starting:
            node, kube_node = start.node, nodes.get(start.node)
            if not pod.demands.stock or kube_node is None:
                continue
            left = _subtract(_subtract(kube_node.stock, taken[node]), own_use[node])
            scarce = next((r for r, n in pod.demands.stock if left.get(r, 0) < n), "")
            if scarce:
                lacking[start.worker] = f"{node} has too little {scarce} left for it"
            else:
                own_use[node].update(dict(pod.demands.stock))
        if lacking and not is_enough(workload, len(starting) - len(lacking)):
            why = next(iter(lacking.values()))
            lacking = {start.worker: lacking.get(start.worker, why) for start, _pod in starting}
            own_use = {}
        for node, amounts in own_use.items():
            taken[node].update(amounts)
        reasons |= lacking
    return reasons


def is_contended(pods: Iterable[Pod]) -> bool:
    """Return True if several of these pods wait for extended resources together."""
    return sum(bool(pod.demands.stock and not pod.node) for pod in pods) > 1


def too_few_for_all(pods: Iterable[Pod]) -> str:
    """Return a clause on what pods may lack together although each fits alone; or ""."""
    waiting_pods = [pod for pod in pods if pod.demands.stock and not pod.node]
    names = sorted({name for pod in waiting_pods for name, _amount in pod.demands.stock})
    return (
        f": too little {', '.join(names)} for all of its workers" if len(waiting_pods) > 1 else ""
    )


def distribute_nodes(
    pods: Iterable[Pod],
    nodes: Iterable[KubeNode],
    allowed: Mapping[Demands, Container[str]],
    free: Mapping[str, int],
    promised: Mapping[str, str],
) -> Mapping[str, Sequence[str]]:
    """Return the nodes for each of the workers that wait together, by place.

    A node with enough for two of them is offered to two. Nodes with `free` devices come first: as
    many workers as can start there together get one each. `allowed` are the nodes that one worker
    with such demands may use; `promised` is the nominated node of a worker.
    """
    waiting_pods = list(pods)
    nodes_by_place: dict[str, list[str]] = {pod.place: [] for pod in waiting_pods}
    max_demand: Counter[str] = Counter()
    for pod in waiting_pods:
        max_demand |= Counter(dict(pod.demands.stock))
    max_gpus = max((pod.gpus for pod in waiting_pods), default=0)
    startable: list[str] = []  # a node once for each worker that its free devices fit
    later: list[str] = []
    candidates: dict[str, list[Pod]] = {}
    for node in nodes:
        name = node.name
        eligible = [pod for pod in waiting_pods if name in allowed[pod.demands]]
        room = max(1, _fitting_pods(node, max_demand.items()))
        # Workers nominated to this node go first.
        nominated = [pod for pod in eligible if promised.get(pod.place) == name]
        for pod in eligible if room >= len(eligible) else nominated[:room]:
            nodes_by_place[pod.place].append(name)
        candidates[name] = [pod for pod in eligible if name not in nodes_by_place[pod.place]]
        room = min(len(candidates[name]), room - (len(eligible) - len(candidates[name])))
        fits = min(room, max(0, free.get(name, 0)) // max_gpus) if max_gpus else room
        startable += [name] * fits
        later += [name] * (room - fits)
    for name in (*startable, *later):
        waiting = candidates[name]
        # The worker with the fewest nodes goes first: each gets one before any gets two.
        chosen = min(waiting, key=lambda pod: (len(nodes_by_place[pod.place]), pod.place))
        nodes_by_place[chosen.place].append(name)
        waiting.remove(chosen)
    return nodes_by_place


def min_fitting_pods(nodes: Iterable[KubeNode], stock: Iterable[tuple[str, int]]) -> int:
    """Return how many pods with this demand fit on the smallest node that fits any; 0: none does.

    So many pods or fewer cannot block each other, wherever they go.
    """
    amounts = tuple(stock)
    rooms = filter(None, (_fitting_pods(node, amounts) for node in nodes))
    return min(rooms, default=0)


def _fitting_pods(node: KubeNode, stock: Iterable[tuple[str, int]]) -> int:
    return max(0, min(node.stock.get(name, 0) // amount for name, amount in stock))


def _subtract(stock: Mapping[str, int], taken: Mapping[str, int]) -> Mapping[str, int]:
    return {name: amount - taken.get(name, 0) for name, amount in stock.items()}
