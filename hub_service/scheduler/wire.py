"""Snapshots and plans as JSON objects: the interface for tools, other languages and tests.

Knows every field's name, type and default on the wire, and that unknown fields are errors. Takes
and gives decoded JSON (dicts and lists), never text. Called by `__main__`, the API and tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar, assert_never

from runai.hub_service.scheduler.fields import (
    GPUS,
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
    Decision,
    DeviceShare,
    LeftOut,
    Move,
    Node,
    NodeTypes,
    Plan,
    Policy,
    Project,
    ProjectShare,
    Reason,
    Reserve,
    Resize,
    Snapshot,
    Start,
    Stop,
    Unreserve,
    Wait,
    Worker,
    WorkerState,
    Workload,
)
from runai.hub_service.scheduler.quantity import gpu_number

__all__ = [
    "InvalidSnapshot",
    "plan_from_json",
    "plan_to_json",
    "snapshot_from_json",
    "snapshot_to_json",
]

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
    },
)
_NODE = ObjectFormat(
    "node",
    Node,
    {
        "name": _NAME,
        "devices": _COUNT,
        "device_memory_mib": _COUNT,
        "gpu_type": _TEXT,
        "cpu_milli": _OPTIONAL_COUNT,
        "memory_mib": _OPTIONAL_COUNT,
        "labels": TEXTS,
        "schedulable": _FLAG,
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
    return _PROJECT.read(value)


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
    _check_tree(snapshot.projects)
    _check_workers(snapshot)
    return snapshot


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
        for worker in workload.workers:
            if worker.gpus and worker.gpu_memory_mib:
                message = f"worker {worker.name}: give either gpus or gpu_memory_mib"
                raise InvalidSnapshot(message)
            if worker.state is WorkerState.PENDING:
                continue
            if worker.node is None:
                message = f"worker {worker.name}: it is {worker.state} but names no node"
                raise InvalidSnapshot(message)
            missing = [d for d in worker.devices if d >= sizes.get(worker.node, d + 1)]
            if missing:
                message = f"worker {worker.name}: node {worker.node} has no device {missing[0]}"
                raise InvalidSnapshot(message)


_SHARE = ObjectFormat("device", DeviceShare, {"device": _COUNT, "gpus": GPUS})
_SHARES = Field(tuple_of(_SHARE.read), lambda shares: [_write_share(share) for share in shares])
_REASON = ObjectFormat(
    "reason", Reason, {"code": _NAME, "rule": _NAME, "text": _TEXT, "for_": _NAME}
)


def _write_share(share: DeviceShare) -> Json:
    return {"device": share.device, "gpus": gpu_number(share.gpus)}


def _read_reason(value: Any) -> Reason:  # noqa: ANN401  decoded JSON
    if type(value) is dict and "for" in value:
        value = {**value, "for_": value["for"]}
        del value["for"]
    return _REASON.read(value)


def _write_reason(reason: Reason) -> Json:
    written = _REASON.write(reason)
    if "for_" in written:
        written["for"] = written.pop("for_")
    return written


_WORKLOAD_WORKER = {"workload": _NAME, "worker": _NAME}
_PLACED = {**_WORKLOAD_WORKER, "node": _NAME, "devices": _SHARES}
_WHY = Field(_read_reason, _write_reason)
_DECISIONS: dict[str, ObjectFormat[Any]] = {
    "start": ObjectFormat("start", Start, _PLACED),
    "stop": ObjectFormat("stop", Stop, {**_WORKLOAD_WORKER, "reason": _WHY}),
    "reserve": ObjectFormat("reserve", Reserve, {**_PLACED, "waits_for": NAMES}),
    "unreserve": ObjectFormat("unreserve", Unreserve, _WORKLOAD_WORKER),
    "move": ObjectFormat("move", Move, {**_PLACED, "reason": _WHY}),
    "resize": ObjectFormat("resize", Resize, {**_PLACED, "reason": _WHY}),
    "wait": ObjectFormat("wait", Wait, {"workload": _NAME, "reason": _WHY, "position": _COUNT}),
}


def _read_decision(value: Any) -> Decision:  # noqa: ANN401  decoded JSON
    kind = value.get("kind") if type(value) is dict else None
    if type(kind) is not str or kind not in _DECISIONS:
        message = f"a decision's kind must be one of {', '.join(_DECISIONS)}, not {kind!r}"
        raise InvalidSnapshot(message)
    decision: Decision = _DECISIONS[kind].read({k: v for k, v in value.items() if k != "kind"})
    return decision


def decision_to_json(decision: Decision) -> Json:
    """Write one decision as the wire has it."""
    match decision:
        case Start() | Reserve() | Move() | Resize():
            # Always name the devices: a worker without GPUs has the empty list.
            written = {"devices": [], **_DECISIONS[decision.kind].write(decision)}
        case Stop() | Unreserve() | Wait():
            written = _DECISIONS[decision.kind].write(decision)
        case _:
            assert_never(decision)
    return {"kind": decision.kind, **written}


def plan_to_json(plan: Plan) -> Json:
    """Write a plan with its decisions in order and its projects by name."""
    return {
        "decisions": [decision_to_json(decision) for decision in plan.decisions],
        "projects": {
            name: {
                "quota": OPTIONAL_GPUS.write(share.quota),
                "fair_share": gpu_number(share.fair_share),
                "allocated": gpu_number(share.allocated),
                "over_quota": gpu_number(share.over_quota),
            }
            for name, share in sorted(plan.projects.items())
        },
    }


_PROJECT_SHARE = ObjectFormat(
    "project share",
    ProjectShare,
    {"quota": OPTIONAL_GPUS, "fair_share": GPUS, "allocated": GPUS, "over_quota": GPUS},
)
_PLAN = ObjectFormat(
    "plan",
    Plan,
    {
        "decisions": Field(tuple_of(_read_decision)),
        "projects": Field(mapping_of(_PROJECT_SHARE.read)),
    },
)


def plan_from_json(value: object) -> Plan:
    """Read a plan back; the inverse of `plan_to_json`.

    Raises:
        InvalidSnapshot: a sentence that names what is wrong and where.
    """
    return _PLAN.read(value)
