"""Arithmetic of elastic workers: sizes, parts, and the gain of one more GPU (E2, E3)."""

from __future__ import annotations

from typing import Any

import pytest

from builders import gpus, job, session
from runai.hub_service.scheduler import WorkerState, Workload
from runai.hub_service.scheduler.model.elastic_sizes import (
    ElasticSizes,
    gain,
    repays,
    sizes_of,
    unfold,
)


def sized(
    requested: float, minimum: float | None, maximum: float | None, **fields: Any
) -> Workload:
    return job("j", requested, gpus_min=gpus(minimum), gpus_max=gpus(maximum), **fields)


SIZES: dict[str, tuple[Workload, ElasticSizes | None]] = {
    "none are given": (sized(2, None, None), None),
    "a minimum alone": (sized(2, 1, None), ElasticSizes(1, 2, 2)),
    "a maximum alone": (sized(2, None, 4), ElasticSizes(2, 2, 4)),
    "both": (sized(2, 1, 4), ElasticSizes(1, 2, 4)),
    "three times the same": (sized(2, 2, 2), None),
    "a minimum of nothing is one GPU": (sized(2, 0, None), ElasticSizes(1, 2, 2)),
    "a minimum is rounded up": (sized(3, 1.5, None), ElasticSizes(2, 3, 3)),
    "a maximum is rounded down": (sized(1, None, 2.5), ElasticSizes(1, 1, 2)),
    "a minimum above the request is the request": (sized(2, 3, 4), ElasticSizes(2, 2, 4)),
    "a maximum below the request is the request": (sized(2, 1, 1), ElasticSizes(1, 2, 2)),
    "several workers have none": (sized(2, 1, 4, workers=2), None),
    "a fraction has none": (sized(0.5, 1, 4), None),
    "no GPU has none": (sized(0, 1, 4), None),
    "a session has none": (session("ana-1", 2, gpus_min=gpus(1)), None),
    "a preemptible one has": (
        session("ana-1", 2, gpus_min=gpus(1), preemptible=True),
        ElasticSizes(1, 2, 2),
    ),
}


@pytest.mark.parametrize(("workload", "expected"), SIZES.values(), ids=list(SIZES))
def test_elastic_sizes_of_a_job_are_its_minimum_request_and_maximum_gpus(
    workload: Workload, expected: ElasticSizes | None
) -> None:
    assert sizes_of(workload) == expected


PARTS: dict[str, tuple[Workload, ElasticSizes, list[tuple[int, str, tuple[int, ...]]]]] = {
    "pending: the minimum, and a GPU each beyond": (
        sized(3, 2, 4),
        ElasticSizes(2, 3, 4),
        [(2000, "pending", ()), (1000, "pending", ()), (1000, "pending", ())],
    ),
    "running: its lowest devices are the minimum": (
        sized(3, 2, 5, on="n1:4,0,2"),
        ElasticSizes(2, 3, 5),
        [
            (2000, "running", (0, 2)),
            (1000, "running", (4,)),
            (1000, "pending", ()),
            (1000, "pending", ()),
        ],
    ),
    "reserved: it may still get more": (
        sized(1, 1, 2, on="n1:0", state="reserved"),
        ElasticSizes(1, 1, 2),
        [(1000, "reserved", (0,)), (1000, "pending", ())],
    ),
    "stopping: it wants nothing more": (
        sized(2, 1, 4, on="n1:0,1", state="stopping"),
        ElasticSizes(1, 2, 4),
        [(1000, "stopping", (0,)), (1000, "stopping", (1,))],
    ),
    "more than it could use is kept": (
        sized(1, 1, 2, on="n1:0,1,2"),
        ElasticSizes(1, 1, 2),
        [(1000, "running", (0,)), (1000, "running", (1,)), (1000, "running", (2,))],
    ),
}


@pytest.mark.parametrize(("workload", "sizes", "expected"), PARTS.values(), ids=list(PARTS))
def test_elastic_worker_unfolds_into_a_minimum_part_and_one_part_per_further_gpu(
    workload: Workload, sizes: ElasticSizes, expected: list[tuple[int, str, tuple[int, ...]]]
) -> None:
    parts = unfold(workload, sizes)

    assert [(w.gpus, w.state.value, w.devices) for w in parts.workers] == expected
    assert {w.name for w in parts.workers} == {"j-0"}
    assert parts.minimum == 1


def test_minimum_part_of_an_elastic_worker_has_its_cpu_and_an_unused_part_has_no_node() -> None:
    workload = sized(1, 1, 2, on="n1:0", cpu_milli=4000, memory_mib=100, started=5)
    base, missing = unfold(workload, ElasticSizes(1, 1, 2)).workers

    assert (base.cpu_milli, base.memory_mib, base.node, base.started) == (4000, 100, "n1", 5)
    assert (missing.cpu_milli, missing.memory_mib, missing.node, missing.started) == (
        0,
        0,
        None,
        None,
    )
    assert missing.state is WorkerState.PENDING


GAINS: dict[str, tuple[dict[str, int], ElasticSizes, int, int]] = {
    "without numbers as much as any": ({}, ElasticSizes(1, 2, 4), 1, 1000),
    "in a line with the request": ({"1": 10, "2": 20}, ElasticSizes(1, 2, 4), 1, 1000),
    "less beyond": ({"2": 20, "3": 26}, ElasticSizes(1, 2, 4), 2, 600),
    "the second beyond": ({"2": 20, "3": 26, "4": 28}, ElasticSizes(1, 2, 4), 3, 200),
    "nothing beyond what is known": ({"2": 20}, ElasticSizes(1, 2, 4), 2, 0),
    "between two that are known": ({"1": 10, "3": 20}, ElasticSizes(1, 3, 3), 1, 750),
    "from nothing to the first that is known": ({"4": 40}, ElasticSizes(1, 4, 4), 1, 1000),
    "from a larger minimum": ({"2": 20, "3": 24, "4": 32}, ElasticSizes(2, 4, 4), 1, 500),
    "what does nothing at its request gains nothing": (
        {"1": 5, "2": 0},
        ElasticSizes(1, 2, 2),
        1,
        0,
    ),
    "who is no number is not read": ({"1": 10, "2": 20, "x": 9}, ElasticSizes(1, 2, 4), 1, 1000),
    "nor is a digit that is none": ({"1": 10, "2": 20, "²": 9}, ElasticSizes(1, 2, 4), 1, 1000),
    "no GPU does nothing, whatever is said": ({"0": 5, "2": 20}, ElasticSizes(1, 2, 4), 1, 1000),
    "of a size given twice the larger": (
        {"1": 10, "01": 10, "2": 20},
        ElasticSizes(1, 2, 4),
        1,
        1000,
    ),
}


@pytest.mark.parametrize(
    ("throughput", "sizes", "index", "expected"), GAINS.values(), ids=list(GAINS)
)
def test_elastic_gain_is_in_thousandths_of_a_requested_gpu(
    throughput: dict[str, int], sizes: ElasticSizes, index: int, expected: int
) -> None:
    assert gain(job("j", throughput=throughput), sizes, index) == expected


@pytest.mark.parametrize(
    ("size", "throughput", "expected"),
    [
        pytest.param(2, {"2": 20, "4": 30}, 666, id="whole GPUs each"),
        pytest.param(0.5, {"1": 10, "2": 20}, 1000, id="a fraction counts as one"),
    ],
)
def test_elastic_gain_of_a_gang_worker_is_multiplied_by_its_gpus(
    size: float, throughput: dict[str, int], expected: int
) -> None:
    assert gain(job("j", size, workers=2, throughput=throughput), None, 1) == expected


HORIZONS: dict[str, tuple[dict[str, Any], int, int, int | None, bool]] = {
    "no cost always repays": ({}, 1, 2, None, True),
    "no cost and no gain never does": ({"throughput": {"1": 10}}, 1, 2, None, False),
    # Twice as fast: a resize that costs 100 s repays in another 100 s.
    "with more than twice the cost left": (
        {"resize_cost": 100, "expected_runtime": 1201},
        1,
        2,
        0,
        True,
    ),
    "with exactly that left it is the same": (
        {"resize_cost": 100, "expected_runtime": 1200},
        1,
        2,
        0,
        False,
    ),
    "unknown, it runs as long again": ({"resize_cost": 100}, 1, 2, 799, True),
    "and not longer": ({"resize_cost": 100}, 1, 2, 800, False),
    "never started, it is expected to end at once": ({"resize_cost": 1}, 1, 2, None, False),
    "but to run as long as it says": (
        {"resize_cost": 100, "expected_runtime": 201},
        1,
        2,
        None,
        True,
    ),
    "by a clock that runs ahead too": (
        {"resize_cost": 100, "expected_runtime": 201},
        1,
        2,
        2000,
        True,
    ),
    "longer than expected too": ({"resize_cost": 1, "expected_runtime": 10}, 1, 2, 0, False),
    "two more at once": ({"resize_cost": 100}, 1, 3, 849, True),
}


@pytest.mark.parametrize(
    ("fields", "before", "after", "since", "expected"), HORIZONS.values(), ids=list(HORIZONS)
)
def test_resize_repays_only_if_its_gain_outweighs_its_cost(
    fields: dict[str, Any], before: int, after: int, since: int | None, *, expected: bool
) -> None:
    assert repays(job("j", **fields), before, after, started=since, now=1000) is expected
