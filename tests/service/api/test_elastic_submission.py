"""Stored fields of an elastic submission, and the views of an elastic job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runai.hub_service.api.views.training_views import elastic_view
from runai.hub_service.model.records import (
    ElasticState,
    ProjectSpec,
    WorkerRecord,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)
from runai.hub_service.model.workload_spec import SubmissionContext, workload_spec
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare
from runai.hub_service.wire.elastic_messages import Target
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.workload_request import SubmitRequest

VISION = ProjectSpec("vision", limit=MilliGpu(3000))


def elastic_spec(**fields: Any) -> WorkloadSpec:
    request = SubmitRequest(command=["train"], elastic=True, **fields)
    site = SubmissionContext({"vision": VISION}, [], 16_000, most_devices=4)
    return workload_spec(request, user="ana", project=VISION, site=site)


@pytest.mark.parametrize(
    ("fields", "gpus", "gpus_max", "workers", "min_workers"),
    [
        ({}, 1, 4, 1, 1),
        ({"gpus": 2}, 2, 4, 1, 1),
        ({"gpus": 6}, 6, 6, 1, 1),
        ({"workers": 8}, 1, 0, 8, 1),
        ({"workers": 8, "gpus": 1, "min_workers": 2}, 1, 0, 8, 2),
    ],
    ids=["one GPU", "two GPUs", "more GPUs than a node", "workers", "two workers at least"],
)
def test_elastic_job_request_sets_min_and_max_of_gpus_and_workers(
    fields, gpus, gpus_max, workers, min_workers
):
    spec = elastic_spec(**fields)

    # The largest node has 4 GPUs, so one worker grows up to 4.
    assert (spec.gpus, spec.gpus_max) == (1000 * gpus, 1000 * gpus_max)
    assert (spec.workers, spec.min_workers) == (workers, min_workers)
    assert spec.elastic


def test_guaranteed_workers_of_an_elastic_job_are_stored():
    assert elastic_spec(workers=4, min_workers=2, guaranteed_workers=3).guaranteed_workers == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"elastic": False}, "2 guaranteed workers .* not elastic"),
        ({"workers": 8, "min_workers": 3}, r"2 guaranteed workers .* least \(3\) and all \(8\)"),
        ({}, r"2 guaranteed workers .* least \(1\) and all \(1\)"),
    ],
    ids=["not elastic", "below the minimum", "above the number of workers"],
)
def test_impossible_guaranteed_workers_of_an_elastic_job_are_refused(fields, message):
    request = SubmitRequest(
        command=["train"], gpus=1, guaranteed_workers=2, **{"elastic": True, **fields}
    )
    with pytest.raises(InvalidRequest, match=message):
        workload_spec(
            request,
            user="ana",
            project=ProjectSpec("vision"),
            site=SubmissionContext({}, [], 16_000),
        )


def test_elastic_job_is_checked_against_project_limit_by_its_minimum_size():
    assert elastic_spec(gpus=6).gpus == 6000
    # The limit of vision is 3 GPUs.
    with pytest.raises(InvalidRequest, match="4 GPUs are more than project vision may ever hold"):
        elastic_spec(workers=8, min_workers=4)


def record(*states: str, ranks: int, **state: Any) -> WorkloadRecord:
    spec = replace(elastic_spec(workers=4), name="e")
    workers = tuple(
        WorkerRecord(
            f"vision/e-{index}",
            index,
            worker_state,  # type: ignore[arg-type]  # a string of the table
            devices=(DeviceShare(index, WHOLE_GPU),) if worker_state == "running" else (),
        )
        for index, worker_state in enumerate(states)
    )
    target = Target(1, tuple(w.name for w in workers[:ranks]), "", ranks, 1, 4)
    elastic = ElasticState(target=target, **state)
    return WorkloadRecord(spec, WorkloadState.RUNNING, 0.0, workers, elastic=elastic)


VIEWS = {
    "one worker": (record("running", *["pending"] * 3, ranks=1), "1 of 1 to 4 GPUs", ""),
    "a worker joins": (
        record(*["running"] * 3, "pending", ranks=2),
        "2 of 1 to 4 GPUs, 1 joining",
        "",
    ),
    "with its batch": (
        record("running", "running", ranks=2, global_batch=256, steps=2),
        "2 of 1 to 4 GPUs; 256 samples an update in 2 steps",
        "",
    ),
    "with its speeds": (
        record("running", ranks=1, throughput={2: 190.26, 1: 99.96, 4: 7.259}, steps=1),
        "1 of 1 to 4 GPUs",
        "100 samples/s on 1 GPU, 190 on 2, 7.26 on 4",
    ),
}


@pytest.mark.parametrize(("workload_record", "text", "speed"), VIEWS.values(), ids=VIEWS)
def test_elastic_job_view_shows_size_and_speed(workload_record, text, speed):
    view = elastic_view(workload_record)

    assert view is not None
    assert (view.text, view.speed) == (text, speed)


def test_job_that_is_not_elastic_has_no_elastic_view():
    assert elastic_view(replace(record("running", ranks=1), elastic=None)) is None
