"""Project custom resource `projects.jupyter-runai.dev/v1alpha1` (helm/crds/projects.yaml). Pure.

Parents are checked here: the API server accepts any parent. An unknown parent, or a cycle, is
written to the status, and the project becomes a root without quota.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.amounts import gpus, gpus_text, when
from runai.hub_service.clusters.workloads.snapshot_builder import project_for_core
from runai.hub_service.model.gpu_types import total
from runai.hub_service.model.records import ProjectRecord, ProjectSpec, TimeRules
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import MAX_LEVELS, Project, ProjectShare

PROJECTS = "/apis/jupyter-runai.dev/v1alpha1/projects"


def read_project(found: Object) -> ProjectRecord:
    """Parse a project."""
    metadata, spec = found["metadata"], found.get("spec", {})
    types = spec.get("nodeTypes", {})
    table = {name: gpus(amount) for name, amount in spec.get("quotaByType", {}).items()} or None
    return ProjectRecord(
        ProjectSpec(
            name=metadata["name"],
            parent=str(spec.get("parent") or "") or None,
            quota=gpus(spec.get("quota", 0)) if table is None else total(table),
            quota_by_type=table,
            build_quota=gpus(spec["buildQuota"]) if "buildQuota" in spec else None,
            limit=gpus(spec["limit"]) if "limit" in spec else None,
            weight=None if spec.get("weight") is None else int(spec["weight"]),
            priority=int(spec.get("priority", 100)),
            never_lent=gpus(spec.get("neverLent", 0)) or MilliGpu(0),
            min_runtime=int(spec.get("minRuntimeSeconds", 0)),
            node_types_build=tuple(types["build"]) if "build" in types else None,
            node_types_train=tuple(types["train"]) if "train" in types else None,
            members=tuple(map(str, spec.get("members", ()))),
            groups=tuple(map(str, spec.get("groups", ()))),
            admins=tuple(map(str, spec.get("admins", ()))),
            admin_groups=tuple(map(str, spec.get("adminGroups", ()))),
            time_session=_time_rules(spec.get("sessionTime", {})),
            time_job=_time_rules(spec.get("jobTime", {})),
        ),
        when(metadata["creationTimestamp"]),
    )


def manifest(spec: ProjectSpec) -> dict[str, Any]:
    """Return the object of a project, without fields at their defaults."""
    return {
        "apiVersion": "jupyter-runai.dev/v1alpha1",
        "kind": "Project",
        "metadata": {"name": spec.name},
        "spec": {key: value for key, value in _fields(spec).items() if value is not None},
    }


def change(spec: ProjectSpec, found: Object) -> dict[str, Any]:
    """Return the merge patch that replaces the spec of the object `found`; unset fields go.

    It fails unless `found` is still the object's current version.
    """
    there, fields = found.get("spec", {}), _fields(spec)
    for key, value in fields.items():
        if isinstance(value, dict):  # a merge patch keeps the entries of a map that it leaves out
            fields[key] = {**dict.fromkeys(there.get(key, {})), **value}
    return {
        "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
        "spec": fields,
    }


def _fields(spec: ProjectSpec) -> dict[str, Any]:
    types = {"build": spec.node_types_build, "train": spec.node_types_train}
    table = spec.quota_by_type or {}
    return {
        "parent": spec.parent,
        "quota": gpus_text(spec.quota),
        "quotaByType": {name: gpus_text(amount) for name, amount in table.items()} or None,
        "buildQuota": None if spec.build_quota is None else gpus_text(spec.build_quota),
        "limit": None if spec.limit is None else gpus_text(spec.limit),
        "weight": spec.weight,
        "priority": spec.priority,
        "neverLent": gpus_text(spec.never_lent) if spec.never_lent else None,
        "minRuntimeSeconds": spec.min_runtime or None,
        "jobTime": _time_fields(spec.time_job),
        "sessionTime": _time_fields(spec.time_session),
        "nodeTypes": {k: list(v) for k, v in types.items() if v is not None} or None,
        "members": list(spec.members) or None,
        "groups": list(spec.groups) or None,
        "admins": list(spec.admins) or None,
        "adminGroups": list(spec.admin_groups) or None,
    }


_TIMES = {"default_s": "defaultSeconds", "most_s": "maxSeconds", "warn_s": "warnSeconds"}


def _time_rules(spec: Mapping[str, Any]) -> TimeRules:
    return TimeRules(**{name: int(spec[key]) for name, key in _TIMES.items() if key in spec})


def _time_fields(rules: TimeRules) -> dict[str, int | None] | None:
    """Return the fields of time limits; null removes one. None: all are at their defaults."""
    if rules == TimeRules():
        return None
    warn = None if rules.warn_s == TimeRules().warn_s else rules.warn_s
    return {"defaultSeconds": rules.default_s, "maxSeconds": rules.most_s, "warnSeconds": warn}


def misplaced(projects: Iterable[ProjectRecord]) -> dict[str, str]:
    """Return why projects cannot have the parent that they name, by name."""
    parents = {record.spec.name: record.spec.parent for record in projects}
    wrong = {}
    for name, parent in parents.items():
        if parent is not None and parent not in parents:
            wrong[name] = f"there is no project {parent}, its parent"
        elif name in (path := _ancestors(name, parents)):
            wrong[name] = f"it is its own ancestor: {' < '.join([name, *path])}"
        elif len(path) >= MAX_LEVELS:
            wrong[name] = f"it is below {len(path)} other projects: at most {MAX_LEVELS} levels"
    return wrong


def _ancestors(name: str, parents: Mapping[str, str | None]) -> list[str]:
    """Return the ancestors of a project, up to a root or a cycle."""
    path: list[str] = []
    above = parents[name]
    while above is not None and above not in path:
        path.append(above)
        above = parents.get(above)
    return path


def for_core(
    projects: Iterable[ProjectRecord], wrong: Mapping[str, str], gpu_types: Collection[str] = ()
) -> list[Project]:
    """Return the projects for the core, oldest first; `gpu_types` are those of the nodes.

    A misplaced project is a root with quota 0.
    """
    placed = [
        replace(
            record, spec=replace(record.spec, parent=None, quota=MilliGpu(0), quota_by_type=None)
        )
        if record.spec.name in wrong
        else record
        for record in sorted(projects, key=lambda record: (record.created, record.spec.name))
    ]
    parents = {record.spec.parent for record in placed}
    return [project_for_core(record, parents, gpu_types) for record in placed]


def status(
    spec: ProjectSpec, share: ProjectShare | None, pending: int, wrong: str
) -> dict[str, Any]:
    """Return the status for `kubectl get projects`; `wrong` is why its parent is invalid."""
    table = spec.quota_by_type or {}
    parts = ",".join(f"{name}={gpus_text(amount)}" for name, amount in table.items())
    return {
        "quota": parts or gpus_text(spec.quota),
        "fairShare": gpus_text(share.fair_share if share else 0),
        "allocated": gpus_text(share.allocated if share else 0),
        "pending": gpus_text(pending),
        "conditions": [
            {
                "type": "Valid",
                "status": "False" if wrong else "True",
                "reason": "Misplaced" if wrong else "InTheTree",
                "message": wrong,
            }
        ],
    }
