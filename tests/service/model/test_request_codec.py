"""The stored form of a workload's request, and reading it again."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings

from runai.hub_service.model.request_codec import request_of, workload_of
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Worker, Workload
from strategies import snapshots


@given(snapshots())
@settings(max_examples=50)
def test_a_request_is_read_as_it_was_written(snapshot):
    for workload in snapshot.workloads:
        text = request_of(workload)

        read = workload_of(workload.name, workload.project, json.loads(text))

        assert request_of(read) == text
        assert [w.gpus for w in read.workers] == [w.gpus for w in workload.workers]
        assert (read.kind, read.priority, read.is_preemptible, read.minimum) == (
            *(workload.kind, workload.priority, workload.is_preemptible, workload.minimum),
        )


def workers(count: int, gpus: int = 1000, **fields: Any) -> tuple[Worker, ...]:
    return tuple(Worker(name=f"w-{n}", gpus=MilliGpu(gpus), **fields) for n in range(count))


def test_alike_workers_are_written_once():
    asked = Workload(name="a/gang", project="a", workers=workers(500, 8000))

    assert request_of(asked) == '{"workers":[{"count":500,"gpus":8}]}'


def test_a_long_list_of_nodes_is_left_out():
    many = tuple(f"node-{n}" for n in range(65))

    written = [
        request_of(Workload(name="a/x", project="a", workers=workers(1, nodes=nodes)))
        for nodes in (many[:64], many)
    ]

    assert ["nodes" in text for text in written] == [True, False]
