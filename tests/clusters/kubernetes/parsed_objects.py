"""Parsed pods, Jobs and nodes, as short as a test of pure rules needs them.

For the tests of this folder without a control plane.
"""

from __future__ import annotations

from typing import Any

from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    SCHEDULER,
    KubeNode,
    Owner,
    Pod,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import Demands
from runai.hub_service.model.records import WorkloadSpec
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU


def a_pod(name: str, *, of: Job | None = None, **fields: Any) -> Pod:
    """Return a pod that waits for one GPU; `of` is the Job that created it."""
    owner = None if of is None else Owner("Job", of.name, of.uid)
    defaults: dict[str, Any] = {
        "uid": f"uid-{name}",
        "namespace": "lab",
        "created": 100.0,
        "scheduler": SCHEDULER,
        "project": "vision",
        "kind": "build" if of is None else "train",
        "priority": 100 if of is None else 50,
        "gpus": 1,
        "cpu_milli": 0,
        "memory_mib": 0,
        "demands": Demands(),
        "owner": owner,
        "index": int(name[-1]) if of is not None and of.runs_at_once else None,
    }
    return Pod(name=name, **(defaults | fields))


def a_job(name: str, workers: int = 1, **fields: Any) -> Job:
    """Return a Job; of several workers it is an Indexed one that runs them together."""
    defaults: dict[str, Any] = {
        "uid": f"uid-job-{name}",
        "namespace": "lab",
        "created": 50.0,
        "completions": workers,
        "parallelism": workers,
        "is_indexed": workers > 1,
        "is_suspended": False,
        "succeeded": 0,
    }
    defaults["template"] = a_pod(
        name, uid=defaults["uid"], created=defaults["created"], kind="train", priority=50
    )
    return Job(name=name, **(defaults | fields))


def elastic_spec(name: str, workers: int, **fields: Any) -> WorkloadSpec:
    """Return the spec of an elastic job of several workers, or of one."""
    defaults: dict[str, Any] = {"command": ("train",), "gpus": WHOLE_GPU, "min_workers": 1}
    return WorkloadSpec(
        "vision", name, "ana", "job", workers=workers, elastic=True, **(defaults | fields)
    )


def a_node(name: str, gpus: int = 2, **fields: Any) -> KubeNode:
    """Return a schedulable node."""
    defaults: dict[str, Any] = {
        "cpu_milli": 32_000,
        "memory_mib": 1 << 18,
        "gpu_type": "",
        "gpu_memory_mib": 0,
        "labels": {},
        "taints": (),
        "is_open": True,
    }
    return KubeNode(name=name, gpus=gpus, **(defaults | fields))
