"""Snapshots and plans as JSON: strict parsing, errors as sentences, round trips."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runai.hub_service.scheduler import (
    LeftOut,
    NodeTypes,
    WorkerState,
)
from runai.hub_service.scheduler.model.json_codec import InvalidSnapshot
from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json, snapshot_to_json

EVERY_FIELD: dict[str, Any] = {
    "now": 7,
    "policy": {
        "phases": ["allocate", "consolidate"],
        "packing": "frag",
        "shrink_first": False,
        "reservations": False,
        "backfill": True,
        "history_weight": 2,
        "users_take_turns": True,
        "max_evictions": 3,
        "max_pauses_per_hour": 4,
        "explain": "none",
    },
    "nodes": [
        {
            "name": "n",
            "devices": 2,
            "device_memory_mib": 100,
            "gpu_type": "t4",
            "cpu_milli": 4000,
            "memory_mib": 5000,
            "labels": {"zone": "x"},
            "schedulable": False,
            "broken_devices": [1],
        }
    ],
    "projects": [
        {"name": "p"},
        {
            "name": "a",
            "parent": "p",
            "quota": 2.5,
            "build_quota": 0.5,
            "limit": 4,
            "weight": 3,
            "priority": 200,
            "created": 5,
            "min_runtime": 60,
            "never_lent": 1,
            "node_types": {"build": ["ws"]},
            "usage": 1.25,
            "members": ["ana"],
        },
        {"name": "u", "quota": None},
        {"name": "t", "quota": {"a100": 2, "*": None}},
    ],
    "workloads": [
        {
            "name": "w",
            "project": "a",
            "user": "ana",
            "kind": "session",
            "preemptible": True,
            "priority": 75,
            "submitted": 3,
            "min_workers": 1,
            "gpus_min": 1,
            "gpus_max": 4,
            "expected_runtime": 100,
            "pauses": [1, 2],
            "below_min_since": 4,
            "grace": 30,
            "checkpointed": 5,
            "throughput": {"1": 10, "2": 18},
            "resize_cost": 20,
            "pack_by": "zone",
            "workers": [
                {
                    "name": "w-0",
                    "gpus": 0.35,
                    "devices_wanted": 2,
                    "state": "reserved",
                    "node": "n",
                    "devices": [0, 1],
                    "started": 6,
                    "cpu_milli": 500,
                    "memory_mib": 700,
                    "node_selector": {"zone": "x"},
                    "gpu_types": ["t4"],
                    "nodes": ["n"],
                },
                {"name": "w-1", "gpu_memory_mib": 50},
            ],
        }
    ],
}


def test_snapshot_json_round_trip_preserves_every_field() -> None:
    written = snapshot_to_json(snapshot_from_json(EVERY_FIELD))

    assert json.loads(json.dumps(written)) == EVERY_FIELD


def test_omitted_snapshot_json_fields_have_their_defaults() -> None:
    snapshot = snapshot_from_json(
        {
            "nodes": [{"name": "n"}],
            "projects": [{"name": "a"}],
            "workloads": [{"name": "w", "project": "a", "workers": [{"name": "w-0"}]}],
        }
    )
    node, project, workload = snapshot.nodes[0], snapshot.projects[0], snapshot.workloads[0]
    worker = workload.workers[0]

    assert (snapshot.now, snapshot.policy.packing, snapshot.policy.explain) == (
        0,
        "binpack",
        "short",
    )
    assert snapshot.policy.phases == ("allocate", "reclaim", "preempt", "stop_stale_gangs")
    assert (node.devices, node.cpu_milli, node.schedulable) == (0, None, True)
    assert (project.quota, project.limit, project.priority) == (LeftOut.SUM_OF_CHILDREN, None, 100)
    assert project.node_types == NodeTypes(build=None, train=None)
    assert (workload.kind, workload.is_preemptible, workload.rank) == ("job", True, 50)
    assert (workload.minimum, workload.grace) == (1, 60)
    assert (worker.state, worker.gpus, worker.devices_wanted) == (WorkerState.PENDING, 0, 1)


def test_sessions_in_snapshot_json_have_their_own_defaults() -> None:
    [session] = snapshot_from_json(
        {
            "workloads": [
                {"name": "s", "project": "a", "kind": "session", "workers": [{"name": "s-0"}]}
            ]
        }
    ).workloads

    assert (session.is_preemptible, session.rank) == (False, 100)


def _workload(**fields: Any) -> dict[str, Any]:
    return {"workloads": [{"name": "j", "project": "a", "workers": [{"name": "j-0"}], **fields}]}


def _worker(**fields: Any) -> dict[str, Any]:
    return _workload(workers=[{"name": "j-0", **fields}])


INVALID_SNAPSHOTS: dict[str, tuple[Any, str]] = {
    "not an object": ([], "snapshot must be an object, not []"),
    "unknown field": (
        {"nodes": [{"name": "n", "gpus": 2, "x": 1}]},
        (
            "node n: unknown fields gpus, x (known are name, devices, device_memory_mib, gpu_type,"
            " cpu_milli, memory_mib, labels, schedulable, broken_devices, returning_devices, loss)"
        ),
    ),
    "missing name": ({"nodes": [{}]}, "node: name is missing"),
    "missing workers": (
        {"workloads": [{"name": "j", "project": "a"}]},
        "workload j: workers is missing",
    ),
    "object for a list": ({"nodes": {}}, "snapshot: nodes must be a list, not {}"),
    "text for a number": (
        {"nodes": [{"name": "n", "devices": "2"}]},
        "node n: devices must be an integer from 0 upwards, not '2'",
    ),
    "true for a number": (
        {"nodes": [{"name": "n", "devices": True}]},
        "node n: devices must be an integer from 0 upwards, not True",
    ),
    "empty name": ({"nodes": [{"name": ""}]}, "node: name must be a name, not ''"),
    "number for a flag": (
        {"nodes": [{"name": "n", "schedulable": 1}]},
        "node n: schedulable must be true or false, not 1",
    ),
    "missing device is broken": (
        {"nodes": [{"name": "n", "devices": 2, "broken_devices": [2]}]},
        "node n: it has no device 2 that could be broken",
    ),
    "a device is broken twice": (
        {"nodes": [{"name": "n", "devices": 2, "broken_devices": [1, 1]}]},
        "node n: a device stands twice in broken_devices",
    ),
    "number for a text": (
        {"nodes": [{"name": "n", "gpu_type": 1}]},
        "node n: gpu_type must be a text, not 1",
    ),
    "wrong labels": (
        {"nodes": [{"name": "n", "labels": []}]},
        "node n: labels must be an object, not []",
    ),
    "fraction of a second": ({"now": 1.5}, "snapshot: now must be an integer, not 1.5"),
    "unknown phase": (
        {"policy": {"phases": ["sleep"]}},
        (
            "policy: phases must be one of allocate, consolidate, reclaim, preempt,"
            " stop_stale_gangs, not 'sleep'"
        ),
    ),
    "negative GPUs": (
        {"projects": [{"name": "a", "quota": -1}]},
        "project a: quota must be a number of GPUs from 0 upwards, not -1",
    ),
    "infinite GPUs": (
        {"projects": [{"name": "a", "quota": float("inf")}]},
        "project a: quota is wrong: inf GPUs are not possible: use a number from 0 upwards",
    ),
    "quota above the maximum": (
        {"projects": [{"name": "a", "quota": 10**9 + 1}]},
        "project a: quota must be at most 1000000000 GPUs, not 1000000001",
    ),
    "quota far above the maximum": (
        {"projects": [{"name": "a", "quota": 1e300}]},
        "project a: quota must be at most 1000000000 GPUs, not 1e+300",
    ),
    "too many devices on a node": (
        {"nodes": [{"name": "n", "devices": 10_001}]},
        "node n: devices must be at most 10000, not 10001",
    ),
    "more than three decimals": (
        {"projects": [{"name": "a", "quota": 0.0005}]},
        "project a: quota is wrong: 0.0005 GPUs are too fine: use at most three decimals",
    ),
    "wrong quota of a type": (
        {"projects": [{"name": "a", "quota": {"a100": "x"}}]},
        "project a: quota must be a number of GPUs from 0 upwards, not 'x'",
    ),
    "table of GPU types under its Python name": (
        {"projects": [{"name": "a", "quota_by_type": {}}]},
        "project a: give the table of GPU types as quota",
    ),
    "unknown node type": (
        {"projects": [{"name": "a", "node_types": {"play": ["x"]}}]},
        "node_types: unknown field play (known are build, train)",
    ),
    "unknown parent": (
        {"projects": [{"name": "a", "parent": "b"}]},
        "project a: its parent b is no project",
    ),
    "circle of parents": (
        {"projects": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]},
        "project a: it is its own ancestor",
    ),
    "too many levels of projects": (
        {
            "projects": [
                {"name": "c0"},
                *({"name": f"c{n}", "parent": f"c{n - 1}"} for n in range(1, 21)),
            ]
        },
        "project c20: more than 20 levels of projects",
    ),
    "a name twice": ({"nodes": [{"name": "n"}, {"name": "n"}]}, "two nodes have the name n"),
    "a worker's name twice": (
        _workload(workers=[{"name": "j-0"}, {"name": "j-0"}]),
        "two workers have the name j-0",
    ),
    "no workers": (_workload(workers=[]), "workload j: it has no workers"),
    "minimum above the workers": (
        _workload(min_workers=2),
        "workload j: min_workers is 2, but it has only 1",
    ),
    "minimum of zero workers": (
        _workload(min_workers=0),
        "workload j: min_workers must be an integer from 1 upwards, not 0",
    ),
    "minimum GPUs above the request": (
        _workload(gpus_min=3, workers=[{"name": "j-0", "gpus": 2}]),
        "workload j: gpus_min is 3, but it asks for 2",
    ),
    "maximum GPUs below the request": (
        _workload(gpus_max=1, workers=[{"name": "j-0", "gpus": 2}]),
        "workload j: gpus_max is 1, but it asks for 2",
    ),
    "maximum GPUs above any node": (
        _workload(gpus_max=10_001, workers=[{"name": "j-0", "gpus": 2}]),
        "workload j: gpus_max is 10001, but a node has at most 10000",
    ),
    "unknown kind": (
        _workload(kind="task"),
        "workload j: kind must be one of job, session, not 'task'",
    ),
    "unknown state": (
        _worker(state="lost"),
        "worker j-0: state must be one of pending, reserved, running, stopping, not 'lost'",
    ),
    "1.5 GPUs": (
        _worker(gpus=1.5),
        "worker j-0: gpus must be whole GPUs or a fraction below 1, not 1.5",
    ),
    "GPUs and memory": (
        _worker(gpus=1, gpu_memory_mib=5),
        "worker j-0: give either gpus or gpu_memory_mib",
    ),
    "runs on no node": (_worker(state="running"), "worker j-0: it is running but names no node"),
    "twice on one device": (
        {
            "nodes": [{"name": "n", "devices": 2}],
            **_worker(state="running", node="n", devices=[1, 0, 1]),
        },
        "worker j-0: a device stands twice in devices",
    ),
    "missing device": (
        {"nodes": [{"name": "n", "devices": 1}], **_worker(state="running", node="n", devices=[1])},
        "worker j-0: node n has no device 1",
    ),
    "long value is cut": (
        {"now": "x" * 99},
        f"snapshot: now must be an integer, not '{'x' * 56}...",
    ),
    "longest value that is not cut": (
        {"now": "x" * 58},
        f"snapshot: now must be an integer, not '{'x' * 58}'",
    ),
    "shortest value that is cut": (
        {"now": "x" * 59},
        f"snapshot: now must be an integer, not '{'x' * 56}...",
    ),
}


@pytest.mark.parametrize(("document", "message"), INVALID_SNAPSHOTS.values(), ids=INVALID_SNAPSHOTS)
def test_invalid_snapshot_json_is_rejected_with_a_precise_message(
    document: object, message: str
) -> None:
    with pytest.raises(InvalidSnapshot) as error:
        snapshot_from_json(document)

    assert str(error.value) == message
