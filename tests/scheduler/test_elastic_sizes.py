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


def elastic_job(
    requested: float, minimum: float | None, maximum: float | None, **fields: Any
) -> Workload:
    return job("j", requested, gpus_min=gpus(minimum), gpus_max=gpus(maximum), **fields)


SIZES: dict[str, tuple[Workload, ElasticSizes | None]] = {
    "no bounds": (elastic_job(2, None, None), None),
    "minimum only": (elastic_job(2, 1, None), ElasticSizes(1, 2, 2)),
    "maximum only": (elastic_job(2, None, 4), ElasticSizes(2, 2, 4)),
    "minimum and maximum": (elastic_job(2, 1, 4), ElasticSizes(1, 2, 4)),
    "all three equal": (elastic_job(2, 2, 2), None),
    "minimum of zero becomes one GPU": (elastic_job(2, 0, None), ElasticSizes(1, 2, 2)),
    "minimum is rounded up": (elastic_job(3, 1.5, None), ElasticSizes(2, 3, 3)),
    "maximum is rounded down": (elastic_job(1, None, 2.5), ElasticSizes(1, 1, 2)),
    "minimum above the request": (elastic_job(2, 3, 4), ElasticSizes(2, 2, 4)),
    "maximum below the request": (elastic_job(2, 1, 1), ElasticSizes(1, 2, 2)),
    "several workers": (elastic_job(2, 1, 4, workers=2), None),
    "fraction of a GPU": (elastic_job(0.5, 1, 4), None),
    "no GPU": (elastic_job(0, 1, 4), None),
    "session": (session("ana-1", 2, gpus_min=gpus(1)), None),
    "preemptible session": (
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
    "pending": (
        elastic_job(3, 2, 4),
        ElasticSizes(2, 3, 4),
        [(2000, "pending", ()), (1000, "pending", ()), (1000, "pending", ())],
    ),
    "running: the lowest devices are the minimum part": (
        elastic_job(3, 2, 5, on="n1:4,0,2"),
        ElasticSizes(2, 3, 5),
        [
            (2000, "running", (0, 2)),
            (1000, "running", (4,)),
            (1000, "pending", ()),
            (1000, "pending", ()),
        ],
    ),
    "reserved: a pending part remains": (
        elastic_job(1, 1, 2, on="n1:0", state="reserved"),
        ElasticSizes(1, 1, 2),
        [(1000, "reserved", (0,)), (1000, "pending", ())],
    ),
    "stopping: no pending part": (
        elastic_job(2, 1, 4, on="n1:0,1", state="stopping"),
        ElasticSizes(1, 2, 4),
        [(1000, "stopping", (0,)), (1000, "stopping", (1,))],
    ),
    "running beyond its maximum": (
        elastic_job(1, 1, 2, on="n1:0,1,2"),
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
    workload = elastic_job(1, 1, 2, on="n1:0", cpu_milli=4000, memory_mib=100, started=5)
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
    "no throughput numbers": ({}, ElasticSizes(1, 2, 4), 1, 1000),
    "linear up to the request": ({"1": 10, "2": 20}, ElasticSizes(1, 2, 4), 1, 1000),
    "smaller gain beyond the request": ({"2": 20, "3": 26}, ElasticSizes(1, 2, 4), 2, 600),
    "second GPU beyond the request": ({"2": 20, "3": 26, "4": 28}, ElasticSizes(1, 2, 4), 3, 200),
    "no number beyond the request": ({"2": 20}, ElasticSizes(1, 2, 4), 2, 0),
    "between two numbers": ({"1": 10, "3": 20}, ElasticSizes(1, 3, 3), 1, 750),
    "below the first number": ({"4": 40}, ElasticSizes(1, 4, 4), 1, 1000),
    "minimum of two GPUs": ({"2": 20, "3": 24, "4": 32}, ElasticSizes(2, 4, 4), 1, 500),
    "no throughput at the request": (
        {"1": 5, "2": 0},
        ElasticSizes(1, 2, 2),
        1,
        0,
    ),
    "letter as a size": ({"1": 10, "2": 20, "x": 9}, ElasticSizes(1, 2, 4), 1, 1000),
    "superscript digit as a size": ({"1": 10, "2": 20, "²": 9}, ElasticSizes(1, 2, 4), 1, 1000),
    "number for zero GPUs": ({"0": 5, "2": 20}, ElasticSizes(1, 2, 4), 1, 1000),
    "size stated twice": (
        {"1": 10, "01": 10, "2": 20},
        ElasticSizes(1, 2, 4),
        1,
        1000,
    ),
}


@pytest.mark.parametrize(
    ("throughput", "sizes", "gpu_index", "expected"), GAINS.values(), ids=list(GAINS)
)
def test_elastic_gain_is_in_thousandths_of_a_requested_gpu(
    throughput: dict[str, int], sizes: ElasticSizes, gpu_index: int, expected: int
) -> None:
    assert gain(job("j", throughput=throughput), sizes, gpu_index) == expected


@pytest.mark.parametrize(
    ("size", "throughput", "expected"),
    [
        pytest.param(2, {"2": 20, "4": 30}, 666, id="two GPUs per worker"),
        pytest.param(0.5, {"1": 10, "2": 20}, 1000, id="half a GPU per worker"),
    ],
)
def test_elastic_gain_of_a_gang_worker_is_multiplied_by_its_gpus(
    size: float, throughput: dict[str, int], expected: int
) -> None:
    assert gain(job("j", size, workers=2, throughput=throughput), None, 1) == expected


HORIZONS: dict[str, tuple[dict[str, Any], int, int, int | None, bool]] = {
    "no cost": ({}, 1, 2, None, True),
    "no cost and no gain": ({"throughput": {"1": 10}}, 1, 2, None, False),
    # Twice as fast: a resize that costs 100 s repays in another 100 s.
    "one second more than twice the cost left": (
        {"resize_cost": 100, "expected_runtime": 1201},
        1,
        2,
        0,
        True,
    ),
    "exactly twice the cost left": (
        {"resize_cost": 100, "expected_runtime": 1200},
        1,
        2,
        0,
        False,
    ),
    "unknown run time: more than the cost elapsed": ({"resize_cost": 100}, 1, 2, 799, True),
    "unknown run time: exactly the cost elapsed": ({"resize_cost": 100}, 1, 2, 800, False),
    "unknown run time and start": ({"resize_cost": 1}, 1, 2, None, False),
    "known run time, unknown start": (
        {"resize_cost": 100, "expected_runtime": 201},
        1,
        2,
        None,
        True,
    ),
    "start in the future": (
        {"resize_cost": 100, "expected_runtime": 201},
        1,
        2,
        2000,
        True,
    ),
    "overdue": ({"resize_cost": 1, "expected_runtime": 10}, 1, 2, 0, False),
    "two GPUs more": ({"resize_cost": 100}, 1, 3, 849, True),
}


@pytest.mark.parametrize(
    ("fields", "before", "after", "started", "expected"), HORIZONS.values(), ids=HORIZONS
)
def test_resize_repays_only_if_its_gain_outweighs_its_cost(
    fields: dict[str, Any], before: int, after: int, started: int | None, *, expected: bool
) -> None:
    assert repays(job("j", **fields), before, after, started=started, now=1000) is expected
