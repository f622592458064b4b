"""What a pod's annotations ask for, and what is wrong with them."""

from __future__ import annotations

import pytest

from runai.hub_service.clusters.kubernetes.fractions import Part, read_part


@pytest.mark.parametrize(
    ("annotations", "part"),
    [
        ({}, None),
        ({"gpu-fraction": "0.5"}, Part(milli=500)),
        ({"gpu-memory": "8000"}, Part(mib=8000)),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}, Part(milli=500, devices=2)),
        ({"gpu-fraction": "1", "runai/max-gpus": "4"}, Part(milli=1000, most=4)),
        (
            {"gpu-fraction": "1", "gpu-fraction-num-devices": "2", "runai/max-gpus": "4"},
            Part(milli=1000, devices=2, most=4),
        ),
        (
            {"gpu-fraction": "1.0", "gpu-fraction-num-devices": "2", "runai/max-gpus": "1"},
            Part(milli=1000, devices=2, most=2),
        ),
    ],
    ids=[
        "nothing",
        "a fraction",
        "memory",
        "of several devices",
        "one to four devices",
        "two, up to four",
        "never fewer at most than it asks for",
    ],
)
def test_it_is_read_and_written_the_same(annotations, part):
    assert read_part(annotations, 0) == (part, "")
    if part is not None:
        assert read_part(part.annotations, 0) == (part, "")


@pytest.mark.parametrize(
    ("annotations", "gpus", "wrong"),
    [
        ({"gpu-fraction": "1"}, 0, "must be a part of one GPU"),
        ({"gpu-fraction": "1.5"}, 0, "gpu-fraction must be a part of one GPU, such as 0.5"),
        ({"gpu-fraction": "half"}, 0, "gpu-fraction must be a part of one GPU, such as 0.5"),
        ({"gpu-memory": "8GiB"}, 0, "gpu-memory must be MiB of device memory, such as 8000"),
        ({"gpu-fraction": "0.5", "gpu-memory": "1"}, 0, "are both given"),
        ({"gpu-fraction-num-devices": "2"}, 0, "is said without gpu-fraction or gpu-memory"),
        ({"gpu-fraction": "0.5", "runai/max-gpus": "4"}, 0, "is for whole devices"),
        ({"gpu-memory": "8000", "runai/max-gpus": "4"}, 0, "is for whole devices"),
        ({"gpu-fraction": "1", "runai/max-gpus": "all"}, 0, "must be a number of devices"),
        ({"gpu-fraction": "1", "runai/max-gpus": "999"}, 0, "must be a number of devices"),
        ({"gpu-fraction": "1", "runai/max-gpus": "4"}, 2, "and 2 whole are asked for"),
        ({"runai/max-gpus": "4"}, 2, "is said without gpu-fraction"),
    ],
    ids=[
        "all of a device",
        "more than a device",
        "a word",
        "memory with a unit",
        "a part and memory",
        "devices alone",
        "parts of more devices",
        "memory of more devices",
        "no number",
        "more than any node has",
        "beside the kubelet's",
        "alone",
    ],
)
def test_what_cannot_be_meant_is_said(annotations, gpus, wrong):
    part, said = read_part(annotations, gpus)

    assert part is None
    assert wrong in said
