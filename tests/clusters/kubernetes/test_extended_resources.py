"""Extended resources such as network cards: no pod is bound if too few are left.

Two pods that take a node's last one in one cycle; a gang with all workers on the same card.
"""

from __future__ import annotations

from collections import Counter

import pytest

from clusters.kubernetes.gpu_sharing import wait_message
from clusters.kubernetes.parsed_objects import a_node, a_pod
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import Demands
from runai.hub_service.clusters.kubernetes.snapshot.extended_resources import (
    distribute_nodes,
    min_fitting_pods,
    overcommitted_workers,
)
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import DeviceShare, Start

CARD = "rdma/hca"


def pod_with_cards(name: str, cards: int = 1, **fields):
    return a_pod(name, demands=Demands(stock=((CARD, cards),) if cards else ()), **fields)


def node_with_cards(name: str, cards: int, gpus: int = 2):
    return a_node(name, gpus, stock={CARD: cards})


def start(workload: str, worker: str, node: str) -> Start:
    return Start(
        workload=workload,
        worker=worker,
        node=node,
        devices=(DeviceShare(0, WHOLE_GPU),),
    )


def workers_lacking_cards(*starts: tuple[str, str, int], min_workers: int = 1) -> dict[str, str]:
    """Return the workers left without a card, and why.

    Starts are (workload, worker, cards), on a node with two cards.
    """
    found = overcommitted_workers(
        [(start(w, name, "gpu-0"), pod_with_cards(name, cards)) for w, name, cards in starts],
        {"gpu-0": node_with_cards("gpu-0", 2)},
        lambda _workload, count: count >= min_workers,
    )
    return dict(found)


@pytest.mark.parametrize(
    ("starts", "min_workers", "rejected"),
    [  # starts on a node with two cards: (workload, worker, requested cards)
        pytest.param([("a", "a", 1), ("b", "b", 1)], 1, [], id="cards for both"),
        pytest.param([("a", "a", 2), ("b", "b", 1)], 1, ["b"], id="first workload takes all"),
        pytest.param([("a", "a", 3), ("b", "b", 2)], 1, ["a"], id="rejected workload takes none"),
        pytest.param([("a", "a", 2), ("b", "b", 0)], 1, [], id="workload without cards"),
        pytest.param(
            [("g", "g-0", 1), ("g", "g-1", 2), ("b", "b", 2)],
            2,
            ["g-0", "g-1"],
            id="whole gang",
        ),
        pytest.param([("e", "e-0", 2), ("e", "e-1", 2)], 1, ["e-1"], id="part of an elastic job"),
    ],
)
def test_planned_workers_that_overcommit_network_cards_are_rejected(starts, min_workers, rejected):
    rejections = workers_lacking_cards(*starts, min_workers=min_workers)

    assert rejections == dict.fromkeys(rejected, f"gpu-0 has too little {CARD} left for it")


def open_nodes(pods, kube_nodes, free=None, nominations=None) -> dict[str, list[str]]:
    """Return the nodes open to each worker, by name."""
    names = {pod.place: pod.name for pod in pods}
    allowed = {pod.demands: {m.name for m in kube_nodes} for pod in pods}
    has = {m.name: m.gpus for m in kube_nodes} if free is None else free
    places = {
        pod.place: (nominations or {})[pod.name] for pod in pods if pod.name in (nominations or {})
    }
    found = distribute_nodes(pods, kube_nodes, allowed, has, places)
    return {names[place]: sorted(nodes) for place, nodes in found.items()}


def test_node_with_one_network_card_is_open_to_one_worker_of_a_gang():
    open_to = open_nodes(
        [pod_with_cards("a"), pod_with_cards("b")],
        [node_with_cards("n-0", 1), node_with_cards("n-1", 1)],
    )

    assert open_to == {"a": ["n-0"], "b": ["n-1"]}


def test_node_with_enough_network_cards_is_open_to_all_pods():
    open_to = open_nodes(
        [pod_with_cards("a"), pod_with_cards("b")],
        [node_with_cards("n-0", 2), node_with_cards("n-1", 1)],
    )

    assert open_to == {"a": ["n-0", "n-1"], "b": ["n-0"]}


def test_card_nodes_with_a_free_gpu_are_distributed_to_pods_first():
    nodes = [node_with_cards(f"n-{i}", 1) for i in range(4)]

    open_to = open_nodes(
        [pod_with_cards("a"), pod_with_cards("b")], nodes, free={"n-1": 1, "n-3": 1}
    )

    assert {frozenset(names) & {"n-1", "n-3"} for names in open_to.values()} == {
        frozenset({"n-1"}),
        frozenset({"n-3"}),
    }


def test_pod_that_needs_a_network_card_retains_its_nominated_node():
    open_to = open_nodes(
        [pod_with_cards("a"), pod_with_cards("b")],
        [node_with_cards("n-0", 1)],
        nominations={"b": "n-0"},
    )

    assert open_to == {"a": [], "b": ["n-0"]}


def test_pods_with_different_network_card_requests_are_offered_each_node_once():
    open_to = open_nodes(
        [pod_with_cards("a", 2), pod_with_cards("b", 1)],
        [node_with_cards("n-0", 2), node_with_cards("n-1", 2)],
    )

    assert Counter(name for names in open_to.values() for name in names) == {"n-0": 1, "n-1": 1}


def test_min_fitting_pods_is_the_count_of_the_fullest_node_with_room_for_a_pod():
    nodes = [node_with_cards("n-0", 0), node_with_cards("n-1", 5), node_with_cards("n-2", 9)]

    assert min_fitting_pods(nodes, ((CARD, 2),)) == 2
    assert min_fitting_pods(nodes[:1], ((CARD, 2),)) == 0


def with_card_limit(manifest):
    spec = manifest["spec"].get("template", manifest)["spec"]
    spec["containers"][0]["resources"]["limits"][CARD] = "1"
    return manifest


def nodes(namespace) -> list[str]:
    return sorted(p["spec"]["nodeName"] for p in namespace.pods() if "nodeName" in p["spec"])


@pytest.mark.kubernetes
def test_second_pod_for_the_last_network_card_waits_with_a_reason_until_it_is_free(
    lab, kubeconfig, eventually
):
    lab.node("gpu-0", gpus=2, **{CARD: "1"})
    lab.project("vision", quota=2)
    work = lab.namespace
    for name in ("one", "two"):
        work.create(with_card_limit(pod(name, project="vision")))

    with Scheduler(kubeconfig) as scheduler:
        (message,) = eventually(
            lambda: [text for p in work.pods() if CARD in (text := wait_message(p))],
            what="one pod has a reason to wait",
        )
        (first,) = (name for name in ("one", "two") if work.node_of(name))
        (second,) = {"one", "two"} - {first}
        work.delete(first)
        eventually(lambda: work.node_of(second), what="the other pod runs after it")

    assert f"1 node has too little {CARD}" in message
    assert f"gpu-0 has too little {CARD} left for it" in scheduler.refused


@pytest.mark.kubernetes
def test_gang_starts_once_nodes_have_a_network_card_for_each_worker(lab, kubeconfig, eventually):
    lab.node("gpu-0", gpus=2, **{CARD: "1"})
    lab.project("vision", quota=2)
    work = lab.namespace
    work.create(with_card_limit(job("gang", project="vision", workers=2, gang=True)))

    with Scheduler(kubeconfig) as scheduler:
        eventually(
            lambda: [CARD in wait_message(p) for p in work.pods()] == [True, True],
            what="both pods name the lacking card",
        )
        assert f"too little {CARD} for all of its workers" in wait_message(work.pods()[0])
        lab.node("gpu-1", gpus=2, **{CARD: "1"})
        eventually(lambda: len(nodes(work)) == 2, what="both run")

    assert nodes(work) == ["gpu-0", "gpu-1"]
    assert scheduler.refused == []
