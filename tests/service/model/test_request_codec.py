"""The stored form of a workload's request, and reading it again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings

from runai.hub_service.model.request_codec import request_of, workload_of
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Worker, Workload
from strategies import snapshots


def not_started(workload: Workload) -> Workload:
    workers = tuple(
        Worker(name=w.name, gpus=w.gpus, gpu_memory_mib=w.gpu_memory_mib, gpu_types=w.gpu_types)
        for w in workload.workers
    )
    return replace(
        workload, workers=workers, pauses=(), checkpointed=None, below_min_since=None, throughput={}
    )


@given(snapshots())
@settings(max_examples=50)
def test_decoded_workload_request_equals_the_encoded_request(snapshot):
    for workload in map(not_started, snapshot.workloads):
        text = request_of(workload)

        decoded = workload_of(workload.name, workload.project, json.loads(text))

        assert request_of(decoded) == text
        assert [w.gpus for w in decoded.workers] == [w.gpus for w in workload.workers]
        for name in ("kind", "priority", "is_preemptible", "minimum"):
            assert getattr(decoded, name) == getattr(workload, name)


def workers(count: int, gpus: int = 1000, **fields: Any) -> tuple[Worker, ...]:
    return tuple(Worker(name=f"w-{n}", gpus=MilliGpu(gpus), **fields) for n in range(count))


def test_equal_workers_of_a_stored_request_are_encoded_once_with_their_count():
    workload = Workload(name="a/gang", project="a", workers=workers(500, 8000))

    assert request_of(workload) == '{"workers":[{"count":500,"gpus":8}]}'
