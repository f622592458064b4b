"""Kubernetes' own scheduling constraints on the nodes of a pod."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusters.kubernetes.parsed_objects import a_node, a_pod
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod, read_node
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import (
    accepted_values,
    may_run,
    read_demands,
    read_taints,
)
from runai.hub_service.clusters.kubernetes.snapshot.extended_resources import with_free_stock

PRODUCT = "nvidia.com/gpu.product"
NODE_LABELS = {"zone": "a", "cores": "16"}
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def requires(*terms):
    rules = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": rules}}


def label(operator, *values, key="zone"):
    return {"key": key, "operator": operator, "values": list(values)}


def fits(pod, taints=()) -> bool:
    return may_run(
        read_demands(pod), "gpu-0", NODE_LABELS, read_taints({"taints": list(taints)}), {}
    )


@pytest.mark.parametrize(
    ("pod", "expected"),
    [  # on the node gpu-0 with the labels zone=a and cores=16
        pytest.param({}, True, id="no constraint"),
        pytest.param({"nodeSelector": {"zone": "a"}}, True, id="selector holds"),
        pytest.param({"nodeSelector": {"zone": "b"}}, False, id="selector does not hold"),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, False, id="selector of a missing label"),
        pytest.param(requires({"matchExpressions": [label("In", "a", "b")]}), True, id="In"),
        pytest.param(requires({"matchExpressions": [label("NotIn", "a")]}), False, id="NotIn"),
        pytest.param(
            requires({"matchExpressions": [label("NotIn", "a", key="disk")]}),
            True,
            id="NotIn of a missing label",
        ),
        pytest.param(requires({"matchExpressions": [label("Exists")]}), True, id="Exists"),
        pytest.param(
            requires({"matchExpressions": [label("DoesNotExist")]}), False, id="DoesNotExist"
        ),
        pytest.param(
            requires({"matchExpressions": [label("Gt", "8", key="cores")]}), True, id="Gt"
        ),
        pytest.param(
            requires({"matchExpressions": [label("Lt", "8", key="cores")]}), False, id="Lt"
        ),
        pytest.param(
            requires({"matchExpressions": [label("Gt", "8")]}), False, id="Gt of no number"
        ),
        pytest.param(
            requires({"matchExpressions": [label("In", "a"), label("In", "b")]}),
            False,
            id="all expressions of a term",
        ),
        pytest.param(
            requires(
                {"matchExpressions": [label("In", "b")]}, {"matchExpressions": [label("In", "a")]}
            ),
            True,
            id="one term of several",
        ),
        pytest.param(requires({}), False, id="an empty term matches nothing"),
        pytest.param(
            requires({"matchFields": [label("In", "gpu-0", key="metadata.name")]}),
            True,
            id="the node by its name",
        ),
        pytest.param(
            requires({"matchFields": [label("In", "gpu-1", key="metadata.name")]}),
            False,
            id="another node by its name",
        ),
    ],
)
def test_pod_fits_nodes_that_satisfy_its_selector_and_affinity(pod, expected):
    assert fits(pod) is expected


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        pytest.param({"key": "nvidia.com/gpu", "operator": "Exists"}, True, id="key"),
        pytest.param({"operator": "Exists"}, True, id="every taint"),
        pytest.param({"key": "nvidia.com/gpu", "value": "present"}, True, id="key and value"),
        pytest.param({"key": "nvidia.com/gpu", "value": "no"}, False, id="another value"),
        pytest.param({"key": "spot", "operator": "Exists"}, False, id="another key"),
        pytest.param(
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"},
            False,
            id="another effect",
        ),
    ],
)
def test_node_taint_excludes_pods_that_do_not_tolerate_it(toleration, expected):
    assert not fits({}, [GPU_TAINT])
    assert fits({"tolerations": [toleration]}, [GPU_TAINT]) is expected


def test_prefer_no_schedule_taint_excludes_no_pod():
    assert fits({}, [{"key": "slow", "effect": "PreferNoSchedule"}])


def product(operator, *values):
    return label(operator, *values, key=PRODUCT)


@pytest.mark.parametrize(
    ("spec", "types"),
    [
        pytest.param({}, (), id="no constraint"),
        pytest.param({"nodeSelector": {PRODUCT: "L4", "zone": "a"}}, ("L4",), id="selector"),
        pytest.param(
            requires({"matchExpressions": [product("In", "T4", "L4")]}), ("T4", "L4"), id="one term"
        ),
        pytest.param(
            requires(
                {"matchExpressions": [product("In", "T4")]},
                {"matchExpressions": [label("In", "a"), product("In", "L4")]},
            ),
            ("T4", "L4"),
            id="each of two terms",
        ),
        pytest.param(
            requires(
                {"matchExpressions": [product("In", "T4")]},
                {"matchExpressions": [label("In", "a")]},
            ),
            (),
            id="not every term",
        ),
        pytest.param(requires({"matchExpressions": [product("NotIn", "T4")]}), (), id="NotIn"),
    ],
)
def test_gpu_types_of_a_pod_are_read_from_selector_and_affinity(spec, types):
    assert accepted_values(read_demands(spec), PRODUCT) == types


CARDS = "example.com/card"


def pod_with_cards(name: str, cards: int, **fields: Any) -> Pod:
    resources = {"requests": {CARDS: str(cards)}, "limits": {CARDS: str(cards), "cpu": "1"}}
    spec = {"containers": [{"name": "main", "resources": resources}]}
    return replace(a_pod(name), demands=read_demands(spec), **fields)


@pytest.mark.parametrize(
    ("other_pod", "expected"),
    [  # of three cards; each of the two pods requests two
        pytest.param({}, True, id="waiting pod"),
        pytest.param({"node": "gpu-0"}, False, id="pod on the node"),
        pytest.param({"node": "gpu-1"}, True, id="pod on another node"),
        pytest.param({"node": "gpu-0", "is_finished": True}, True, id="finished pod"),
        pytest.param(
            {"node": "gpu-0", "scheduler": "default-scheduler"},
            False,
            id="pod of another scheduler",
        ),
    ],
)
def test_pod_fits_a_node_only_if_its_extended_resources_are_left(other_pod: Any, expected: bool):
    stock = read_node(
        {"metadata": {"name": "gpu-0"}, "status": {"allocatable": {CARDS: "3", "pods": "9"}}}
    ).stock
    (node,) = with_free_stock(
        [a_node("gpu-0", stock=stock)], [pod_with_cards("other", 2, **other_pod)]
    )

    demands = pod_with_cards("waiting", 2).demands
    assert may_run(demands, node.name, node.labels, node.taints, node.stock) is expected
