"""The map on the spawn form: the free part of each GPU now."""

from __future__ import annotations

import pytest

from runai.hub_service.wire.device_schemas import DeviceView, NodeView
from runai.spawner.form import Offer, ProjectChoices, render
from runai.spawner.free_map import FreeMap, free_map


def node(*allocated: float | None, name: str = "box") -> NodeView:
    """Return a node by the allocation of each device; None: taken out of service."""
    return NodeView(
        name=name,
        devices=[
            DeviceView(
                device=number,
                uuid=f"GPU-{number}",
                name="A",
                memory_mib=16384,
                simulated=False,
                healthy=part is not None,
                allocated=part or 0,
            )
            for number, part in enumerate(allocated)
        ],
    )


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        pytest.param([node(1, 0.5, 0)], "1.5 of 3 GPUs free (1 whole)", id="mixed"),
        pytest.param([node(1, 1)], "0 of 2 GPUs free", id="full"),
        pytest.param([node(0, 0)], "2 of 2 GPUs free", id="empty"),
        pytest.param([node(None, 0)], "1 of 2 GPUs free (1 whole)", id="device out of service"),
        pytest.param([node(0), node(1, name="b")], "1 of 2 GPUs free (1 whole)", id="two nodes"),
        pytest.param([], "", id="no GPUs"),
    ],
)
def test_map_of_free_gpus_counts_free_gpus_in_words(nodes, words):
    assert free_map(nodes).words == words


def test_map_of_free_gpus_has_the_free_part_of_each_device():
    [node_map] = free_map([node(0.25, 1, None)]).nodes

    assert list(node_map.taken) == [0.25, 1, None]
    assert node_map.words == "box, GPU 0: 0.75 free; GPU 1: 0 free; GPU 2: taken out"


def test_map_of_free_gpus_in_a_large_cluster_has_only_the_summary():
    cluster_map = free_map([node(*[0.0] * 65)])  # a map has at most 64 devices

    assert cluster_map.words == "65 of 65 GPUs free"
    assert not cluster_map.nodes


def test_spawn_form_contains_the_map_of_free_gpus_once():
    offer = Offer([ProjectChoices("nlp", ""), ProjectChoices("cv", "")], free_map([node(0.5, 0)]))
    html = render(offer.projects, free=offer.free, last={})

    assert html.count('id="runai-free"') == 1
    assert 'aria-label="box, GPU 0: 0.5 free; GPU 1: 1 free"' in html
    assert 'id="runai-free"' not in render(offer.projects, free=FreeMap(), last={})
