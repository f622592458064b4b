"""JSON of snapshots: the interface for tools, other languages and tests.

Values are decoded JSON (dicts and lists), not text. Fields and defaults are the dataclasses' own;
rules across fields are checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from runai.hub_service.scheduler.model.json_codec import (
    CODECS,
    DataclassCodec,
    FieldCodec,
    InvalidSnapshot,
)
from runai.hub_service.scheduler.model.quantity import MAX_DEVICES, WHOLE_GPU, gpu_text
from runai.hub_service.scheduler.model.snapshot import (
    MAX_LEVELS,
    Node,
    Policy,
    Project,
    Snapshot,
    Worker,
    WorkerState,
    Workload,
)

Json = dict[str, Any]
T = TypeVar("T", Node, Project, Workload, Worker)

_POLICY = DataclassCodec(Policy)
_PROJECT = DataclassCodec(Project)


def _read_project(value: Any) -> Project:  # noqa: ANN401  decoded JSON
    """Parse a project. Its quota is a number, null, a table by GPU type, or absent."""
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
    written = _PROJECT.write(project)
    if project.quota_by_type is not None:
        written["quota"] = written.pop("quota_by_type")
    return written


CODECS[Project] = FieldCodec(_read_project, _write_project)
_SNAPSHOT = DataclassCodec(Snapshot)


def snapshot_from_json(value: object) -> Snapshot:
    """Parse a snapshot strictly; fields with a default are optional.

    >>> snapshot_from_json({"nodes": [{"name": "n", "devices": 2}]}).nodes[0].devices
    2

    Raises:
        InvalidSnapshot: the message names the mistake and its place.
    """
    snapshot = _SNAPSHOT.read(value)
    if mistake := next(_mistakes(snapshot), None):
        raise InvalidSnapshot(mistake)
    return snapshot


def policy_from_json(value: object) -> Policy:
    """Parse a policy strictly; absent fields have their default.

    >>> policy_from_json({"packing": "spread"}).packing
    'spread'

    Raises:
        InvalidSnapshot: the message names the mistake.
    """
    return _POLICY.read(value)


def snapshot_to_json(snapshot: Snapshot) -> Json:
    """Return a snapshot as JSON without defaults; the inverse of `snapshot_from_json`."""
    return _SNAPSHOT.write(snapshot)


def _mistakes(snapshot: Snapshot) -> Iterator[str]:
    """Yield contradictions. Use only the first: later checks rely on earlier ones."""
    workers = [worker for workload in snapshot.workloads for worker in workload.workers]
    yield from _duplicate_names("node", snapshot.nodes)
    yield from _duplicate_names("project", snapshot.projects)
    yield from _duplicate_names("workload", snapshot.workloads)
    yield from _duplicate_names("worker", workers)
    yield from _node_mistakes(snapshot.nodes)
    yield from _tree_mistakes(snapshot.projects)
    yield from _worker_mistakes(snapshot)


def _duplicate_names(word: str, items: Iterable[T]) -> Iterator[str]:
    names: set[str] = set()
    for item in items:
        if item.name in names:
            yield f"two {word}s have the name {item.name}"
        names.add(item.name)


def _tree_mistakes(projects: Iterable[Project]) -> Iterator[str]:
    parents = {project.name: project.parent for project in projects}
    for name, parent in parents.items():
        ancestor, branch = parent, {name}
        while ancestor is not None:
            if ancestor not in parents:
                yield f"project {name}: its parent {ancestor} is no project"
            if ancestor in branch:
                yield f"project {name}: it is its own ancestor"
            branch.add(ancestor)
            if len(branch) > MAX_LEVELS:
                yield f"project {name}: more than {MAX_LEVELS} levels of projects"
            ancestor = parents[ancestor]


def _node_mistakes(nodes: Iterable[Node]) -> Iterator[str]:
    for node in nodes:
        broken = node.broken_devices
        if len(set(broken)) < len(broken):
            yield f"node {node.name}: a device stands twice in broken_devices"
        if missing := [device for device in broken if device >= node.devices]:
            yield f"node {node.name}: it has no device {missing[0]} that could be broken"
        if working := sorted(set(node.returning_devices).difference(broken)):
            yield f"node {node.name}: device {working[0]} can only return if it is broken"


def _worker_mistakes(snapshot: Snapshot) -> Iterator[str]:
    sizes = {node.name: node.devices for node in snapshot.nodes}
    for workload in snapshot.workloads:
        if not workload.workers:
            yield f"workload {workload.name}: it has no workers"
        if workload.minimum > len(workload.workers):
            yield (
                f"workload {workload.name}: min_workers is {workload.minimum},"
                f" but it has only {len(workload.workers)}"
            )
        if (workload.guaranteed_workers or 0) > len(workload.workers):
            yield (
                f"workload {workload.name}: guaranteed_workers is {workload.guaranteed_workers},"
                f" but it has only {len(workload.workers)}"
            )
        yield from _size_mistakes(workload)
        for worker in workload.workers:
            if worker.gpus and worker.gpu_memory_mib:
                yield f"worker {worker.name}: give either gpus or gpu_memory_mib"
            if worker.state is WorkerState.PENDING:
                continue
            if worker.node is None:
                yield f"worker {worker.name}: it is {worker.state} but names no node"
            if len(set(worker.devices)) < len(worker.devices):
                yield f"worker {worker.name}: a device stands twice in devices"
            size = sizes.get(worker.node or "")
            if size is not None and (missing := [d for d in worker.devices if d >= size]):
                yield f"worker {worker.name}: node {worker.node} has no device {missing[0]}"


def _size_mistakes(workload: Workload) -> Iterator[str]:
    """Yield bounds that contradict the request of an elastic worker (E2)."""
    label, minimum, maximum = f"workload {workload.name}", workload.gpus_min, workload.gpus_max
    requested = workload.workers[0].gpus
    if len(workload.workers) > 1 or not requested or requested % WHOLE_GPU:
        return
    if minimum is not None and minimum > requested:
        yield f"{label}: gpus_min is {gpu_text(minimum)}, but it asks for {gpu_text(requested)}"
    if maximum is not None and maximum < requested:
        yield f"{label}: gpus_max is {gpu_text(maximum)}, but it asks for {gpu_text(requested)}"
    if maximum is not None and maximum > MAX_DEVICES * WHOLE_GPU:
        yield f"{label}: gpus_max is {gpu_text(maximum)}, but a node has at most {MAX_DEVICES}"
