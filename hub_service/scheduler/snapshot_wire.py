"""Snapshots as JSON objects: the interface for tools, other languages and tests.

Knows every field's name, type and default on the wire, and that unknown fields are errors. Takes
and gives decoded JSON (dicts and lists), never text; plans are `plan_wire`'s. Exported by
`wire`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from runai.hub_service.scheduler.fields import (
    GPUS,
    MOST_DEVICES,
    NAMES,
    OPTIONAL_GPUS,
    OPTIONAL_NAMES,
    TEXTS,
    Field,
    InvalidSnapshot,
    ObjectFormat,
    mapping_of,
    one_of,
    optional,
    read_count,
    read_devices,
    read_flag,
    read_gpus,
    read_name,
    read_positive,
    read_text,
    read_whole,
    read_worker_gpus,
    tuple_of,
)
from runai.hub_service.scheduler.model import (
    LeftOut,
    Node,
    NodeTypes,
    Policy,
    Project,
    Snapshot,
    Worker,
    WorkerState,
    Workload,
)
from runai.hub_service.scheduler.quantity import WHOLE_GPU, gpu_number, gpu_text

Json = dict[str, Any]
T = TypeVar("T", Node, Project, Workload, Worker)

_NAME = Field(read_name)
_TEXT = Field(read_text)
_FLAG = Field(read_flag)
_WHOLE = Field(read_whole)
_COUNT = Field(read_count)
_OPTIONAL_COUNT = Field(optional(read_count))
_OPTIONAL_WHOLE = Field(optional(read_whole))

_PHASE = one_of("allocate", "consolidate", "reclaim", "preempt", "stop_stale_gangs")
_STATES = {state.value: state for state in WorkerState}


def _read_state(value: object) -> WorkerState:
    state = _STATES.get(value) if type(value) is str else None
    if state is None:
        message = f"must be one of {', '.join(_STATES)}, not {value!r}"
        raise ValueError(message)
    return state


_POLICY = ObjectFormat(
    "policy",
    Policy,
    {
        "phases": Field(tuple_of(_PHASE), list),
        "packing": Field(one_of("binpack", "spread", "frag")),
        "shrink_first": _FLAG,
        "reservations": _FLAG,
        "backfill": _FLAG,
        "history_weight": _COUNT,
        "users_take_turns": _FLAG,
        "max_evictions": _OPTIONAL_COUNT,
        "max_pauses_per_hour": _OPTIONAL_COUNT,
        "explain": Field(one_of("short", "full", "none")),
        "name_others": _FLAG,
    },
)
_NODE = ObjectFormat(
    "node",
    Node,
    {
        "name": _NAME,
        "devices": Field(read_devices),
        "device_memory_mib": _COUNT,
        "gpu_type": _TEXT,
        "cpu_milli": _OPTIONAL_COUNT,
        "memory_mib": _OPTIONAL_COUNT,
        "labels": TEXTS,
        "schedulable": _FLAG,
        "broken_devices": Field(tuple_of(read_count), list),
    },
)
_NODE_TYPES = ObjectFormat(
    "node_types", NodeTypes, {"build": OPTIONAL_NAMES, "train": OPTIONAL_NAMES}
)
_QUOTA_BY_TYPE = Field(
    mapping_of(optional(read_gpus)),
    lambda table: {k: None if v is None else gpu_number(v) for k, v in table.items()},
)
_PROJECT = ObjectFormat(
    "project",
    Project,
    {
        "name": _NAME,
        "parent": Field(optional(read_name)),
        "quota": OPTIONAL_GPUS,
        "quota_by_type": _QUOTA_BY_TYPE,
        "build_quota": OPTIONAL_GPUS,
        "limit": OPTIONAL_GPUS,
        "weight": _OPTIONAL_COUNT,
        "priority": _WHOLE,
        "created": _WHOLE,
        "min_runtime": _COUNT,
        "never_lent": GPUS,
        "node_types": Field(_NODE_TYPES.read, _NODE_TYPES.write),
        "usage": OPTIONAL_GPUS,
        "members": NAMES,
    },
)
_WORKER = ObjectFormat(
    "worker",
    Worker,
    {
        "name": _NAME,
        "gpus": Field(read_worker_gpus, gpu_number),
        "gpu_memory_mib": Field(optional(read_positive)),
        "devices_wanted": Field(read_positive),
        "state": Field(_read_state, lambda state: state.value),
        "node": Field(optional(read_name)),
        "devices": Field(tuple_of(read_count), list),
        "started": _OPTIONAL_WHOLE,
        "gone_by": _OPTIONAL_WHOLE,
        "cpu_milli": _COUNT,
        "memory_mib": _COUNT,
        "node_selector": TEXTS,
        "gpu_types": NAMES,
        "nodes": OPTIONAL_NAMES,
    },
)
_WORKLOAD = ObjectFormat(
    "workload",
    Workload,
    {
        "name": _NAME,
        "project": _NAME,
        "workers": Field(tuple_of(_WORKER.read), lambda ws: [_WORKER.write(w) for w in ws]),
        "user": _TEXT,
        "kind": Field(one_of("job", "session")),
        "preemptible": Field(optional(read_flag)),
        "priority": _OPTIONAL_WHOLE,
        "submitted": _WHOLE,
        "min_workers": Field(optional(read_positive)),
        "gpus_min": OPTIONAL_GPUS,
        "gpus_max": OPTIONAL_GPUS,
        "expected_runtime": _OPTIONAL_COUNT,
        "pauses": Field(tuple_of(read_whole), list),
        "below_min_since": _OPTIONAL_WHOLE,
        "grace": _COUNT,
        "checkpointed": _OPTIONAL_WHOLE,
        "throughput": Field(mapping_of(read_count), dict),
        "resize_cost": _COUNT,
        "pack_by": _TEXT,
    },
)


def _read_project(value: Any) -> Project:  # noqa: ANN401  decoded JSON
    """Read a project, whose quota may be a number, null, a table by GPU type, or left out."""
    if type(value) is dict and type(value.get("quota")) is dict:
        value = {**value, "quota_by_type": value["quota"]}
        del value["quota"]
    elif type(value) is dict and "quota_by_type" in value:
        message = f"project {value.get('name')}: give the table of GPU types as quota"
        raise InvalidSnapshot(message)
    try:
        return _PROJECT.read(value)
    except InvalidSnapshot as error:
        raise InvalidSnapshot(str(error).replace("quota_by_type", "quota")) from None


def _write_project(project: Project) -> Json:
    written = _PROJECT.write(replace(project, quota=LeftOut.SUM_OF_CHILDREN))
    if project.quota_by_type is not None:
        written["quota"] = written.pop("quota_by_type")
    elif project.quota is not LeftOut.SUM_OF_CHILDREN:
        written["quota"] = OPTIONAL_GPUS.write(project.quota)
    return written


_SNAPSHOT = ObjectFormat(
    "snapshot",
    Snapshot,
    {
        "now": _WHOLE,
        "policy": Field(_POLICY.read, _POLICY.write),
        "nodes": Field(tuple_of(_NODE.read), lambda ns: [_NODE.write(n) for n in ns]),
        "projects": Field(tuple_of(_read_project), lambda ps: [_write_project(p) for p in ps]),
        "workloads": Field(tuple_of(_WORKLOAD.read), lambda ws: [_WORKLOAD.write(w) for w in ws]),
    },
)


def snapshot_from_json(value: object) -> Snapshot:
    """Read a decoded JSON snapshot strictly; fields with a default may be left out.

    >>> snapshot_from_json({"nodes": [{"name": "n", "devices": 2}]}).nodes[0].devices
    2

    Raises:
        InvalidSnapshot: a sentence that names what is wrong and where.
    """
    snapshot = _SNAPSHOT.read(value)
    _check_names("node", snapshot.nodes)
    _check_names("project", snapshot.projects)
    _check_names("workload", snapshot.workloads)
    _check_names("worker", [w for workload in snapshot.workloads for w in workload.workers])
    _check_nodes(snapshot.nodes)
    _check_tree(snapshot.projects)
    _check_workers(snapshot)
    return snapshot


def policy_from_json(value: object) -> Policy:
    """Read a policy strictly; fields that are left out have their default.

    >>> policy_from_json({"packing": "spread"}).packing
    'spread'

    Raises:
        InvalidSnapshot: a sentence that names what is wrong.
    """
    return _POLICY.read(value)


def snapshot_to_json(snapshot: Snapshot) -> Json:
    """Write a snapshot, leaving out what has its default; `snapshot_from_json` gives it back."""
    return _SNAPSHOT.write(snapshot)


def _check_names(word: str, things: Iterable[T]) -> None:
    seen: set[str] = set()
    for thing in things:
        if thing.name in seen:
            message = f"two {word}s have the name {thing.name}"
            raise InvalidSnapshot(message)
        seen.add(thing.name)


def _check_tree(projects: Iterable[Project]) -> None:
    parents = {project.name: project.parent for project in projects}
    for name, parent in parents.items():
        above, seen = parent, {name}
        while above is not None:
            if above not in parents:
                message = f"project {name}: its parent {above} is no project"
                raise InvalidSnapshot(message)
            if above in seen:
                message = f"project {name}: it is its own ancestor"
                raise InvalidSnapshot(message)
            seen.add(above)
            above = parents[above]


def _check_nodes(nodes: Iterable[Node]) -> None:
    for node in nodes:
        broken = node.broken_devices
        if len(set(broken)) < len(broken):
            message = f"node {node.name}: a device stands twice in broken_devices"
            raise InvalidSnapshot(message)
        if missing := [device for device in broken if device >= node.devices]:
            message = f"node {node.name}: it has no device {missing[0]} that could be broken"
            raise InvalidSnapshot(message)


def _check_workers(snapshot: Snapshot) -> None:
    sizes = {node.name: node.devices for node in snapshot.nodes}
    for workload in snapshot.workloads:
        if not workload.workers:
            message = f"workload {workload.name}: it has no workers"
            raise InvalidSnapshot(message)
        if workload.minimum > len(workload.workers):
            message = (
                f"workload {workload.name}: min_workers is {workload.minimum},"
                f" but it has only {len(workload.workers)}"
            )
            raise InvalidSnapshot(message)
        _check_sizes(workload)
        for worker in workload.workers:
            if worker.gpus and worker.gpu_memory_mib:
                message = f"worker {worker.name}: give either gpus or gpu_memory_mib"
                raise InvalidSnapshot(message)
            if worker.state is WorkerState.PENDING:
                continue
            if worker.node is None:
                message = f"worker {worker.name}: it is {worker.state} but names no node"
                raise InvalidSnapshot(message)
            if len(set(worker.devices)) < len(worker.devices):
                message = f"worker {worker.name}: a device stands twice in devices"
                raise InvalidSnapshot(message)
            known = worker.node in sizes
            if known and (missing := [d for d in worker.devices if d >= sizes[worker.node]]):
                message = f"worker {worker.name}: node {worker.node} has no device {missing[0]}"
                raise InvalidSnapshot(message)


def _check_sizes(workload: Workload) -> None:
    """Check that an elastic worker may have what it asks for (E2); nobody else has sizes."""
    least, most = workload.gpus_min, workload.gpus_max
    if least is None and most is None:
        return
    asked = workload.workers[0].gpus
    if len(workload.workers) > 1 or not asked or asked % WHOLE_GPU:
        return
    if least is not None and least > asked:
        wrong = f"gpus_min is {gpu_text(least)}, but it asks for {gpu_text(asked)}"
    elif most is not None and most < asked:
        wrong = f"gpus_max is {gpu_text(most)}, but it asks for {gpu_text(asked)}"
    elif most is not None and most > MOST_DEVICES * WHOLE_GPU:
        wrong = f"gpus_max is {gpu_text(most)}, but a node has at most {MOST_DEVICES}"
    else:
        return
    message = f"workload {workload.name}: {wrong}"
    raise InvalidSnapshot(message)
