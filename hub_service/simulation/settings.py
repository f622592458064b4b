"""Parsers for the cluster and the projects of a run: `195x8`, a file, `--set`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from runai.hub_service.clusters.workloads.snapshot_builder import project_for_core
from runai.hub_service.model.project_changes import changed_project
from runai.hub_service.model.project_tree_rules import check_parent
from runai.hub_service.model.records import ProjectRecord, ProjectSpec
from runai.hub_service.scheduler.model.json_codec import InvalidSnapshot, unique_keys
from runai.hub_service.scheduler.model.quantity import Mib
from runai.hub_service.scheduler.model.snapshot import Node, Project
from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import ProjectPut

_SHAPE: Final = re.compile(r"^([0-9]{1,9})x([0-9]{1,9})$")
MOST_GPUS: Final = 100_000
"""Maximum for a cluster: the scheduler handles each device individually."""
_MEMORY: Final = Mib(81_920)
"""Memory of a device of a cluster such as `195x8`: 80 GiB."""


def read_cluster(text: str) -> list[Node]:
    """Return the nodes of `195x8` (195 nodes of 8 GPUs), or of a JSON file.

    >>> [node.name for node in read_cluster("2x8")]
    ['node-1', 'node-2']

    Raises:
        InvalidRequest: the text is neither, or the cluster has no GPU or too many.
    """
    shape = _SHAPE.match(text)
    if shape:
        count, devices = int(shape[1]), int(shape[2])
        if not count or not devices:
            raise InvalidRequest(f"A cluster of {text} has no GPUs.", hint="Try --cluster 4x8.")
        if count * devices > MOST_GPUS:
            raise InvalidRequest(
                f"A cluster of {text} has more than {MOST_GPUS} GPUs.", hint="Try --cluster 4x8."
            )
        width = len(str(count))
        return [
            Node(name=f"node-{n:0{width}}", devices=devices, device_memory_mib=_MEMORY)
            for n in range(1, count + 1)
        ]
    path = Path(text)
    try:
        text = path.read_text(encoding="utf-8-sig")
        listed = json.loads(text, object_pairs_hook=unique_keys)
        nodes = snapshot_from_json({"nodes": listed}).nodes
    except InvalidSnapshot as wrong:
        raise InvalidRequest(f"{text}: {wrong}.") from wrong
    except (OSError, RecursionError, ValueError) as wrong:
        raise InvalidRequest(
            f"{text} is neither a shape like 195x8 nor a file with a list of nodes:"
            f" {getattr(wrong, 'strerror', None) or wrong}.",
            hint='A nodes file: [{"name": "dgx-1", "devices": 8, "device_memory_mib": 81920}].',
        ) from wrong
    if not any(node.devices for node in nodes):
        raise InvalidRequest(f"{text}: none of its nodes has a GPU.")
    return list(nodes)


def projects_for_core(
    specs: Sequence[ProjectSpec],
    created: Mapping[str, int] | None = None,
    gpu_types: Collection[str] = (),
) -> list[Project]:
    """Convert project specs to the scheduler's projects; `created` defaults to 0 for all."""
    parents, ages = {spec.parent for spec in specs}, created or {}
    return [
        project_for_core(ProjectRecord(spec, created=ages.get(spec.name, 0)), parents, gpu_types)
        for spec in specs
    ]


def with_changes(specs: Sequence[ProjectSpec], changes: Sequence[str]) -> list[ProjectSpec]:
    """Apply changes such as `vision.quota=6` in order; return all projects.

    Raises:
        InvalidRequest: the project, parent or field is unknown, or the value is invalid.
    """
    known = {spec.name: spec for spec in specs}
    for change in changes:
        target, equals, text = change.partition("=")
        name, dot, field = target.rpartition(".")
        if not equals or not dot:
            hint = "Write project.field=value, as in vision.quota=6."
            raise InvalidRequest(f"{change!r} is no change of a project.", hint=hint)
        if name not in known:
            raise InvalidRequest(
                f"{change}: there is no project {name}.",
                hint=f"Projects: {', '.join(sorted(known)) or 'none'}.",
            )
        known[name] = changed_project(known[name], {field: _value(change, field, text)})
        check_parent(known[name], [*known.values()])
    return list(known.values())


def _value(change: str, field: str, text: str) -> object:
    if field not in ProjectPut.model_fields:
        raise InvalidRequest(
            f"{change}: a project has no field {field}.",
            hint=f"Fields: {', '.join(ProjectPut.model_fields)}.",
        )
    given: dict[str, Any] = {field: _plain(field, text)}
    try:
        return getattr(ProjectPut.model_validate(given), field)
    except ValidationError as wrong:
        why = wrong.errors()[0]["msg"]
        raise InvalidRequest(f"{change}: {text!r} is no value for {field}: {why}.") from None


_UNBOUNDED: Final[Mapping[str, None]] = {"none": None, "unlimited": None}


def _plain(field: str, text: str) -> object:
    if text in _UNBOUNDED:
        return None
    if field.startswith(("node_types", "members", "groups", "admin")):
        return [word for word in text.split(",") if word]
    return text
