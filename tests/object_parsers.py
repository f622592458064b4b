"""Parsers of the API server's objects, each behind its informer, and their use afterwards.

Any client with the permission may write objects. The API server checks the types of fields of its
own kinds, and of custom resources only as far as their definition does. An informer drops
unreadable objects; code that uses the remaining ones must not fail. Used by `parsers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

from runai.hub_service.clusters.kubernetes.client.api import Api, Object, decoded, key_of
from runai.hub_service.clusters.kubernetes.gpu_jobs.gpu_job import read_gpu_job, status
from runai.hub_service.clusters.kubernetes.gpu_jobs.worker_pod import (
    WorkerPod,
    exit_of,
    read_worker_pod,
)
from runai.hub_service.clusters.kubernetes.informers.informer import Informer
from runai.hub_service.clusters.kubernetes.informers.node_pool import EVERYTHING
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    PRIORITY,
    KubeNode,
    Pod,
    read_node,
    read_pod,
)
from runai.hub_service.clusters.kubernetes.objects.job_manifest import SPEC
from runai.hub_service.clusters.kubernetes.objects.jobs import PAUSES, STARTS, Job, read_job
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import (
    Demands,
    Taint,
    accepted_values,
    obstacle,
)
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGrouping
from runai.hub_service.clusters.kubernetes.objects.project_resource import (
    for_core,
    manifest,
    misplaced,
    read_project,
)
from runai.hub_service.clusters.kubernetes.objects.volume_binding import (
    Claim,
    Storage,
    StorageClass,
    Volume,
    placed,
    read_claim,
    read_class,
    read_volume,
)
from runai.hub_service.clusters.kubernetes.workloads.gpu_inventory import inventory
from runai.hub_service.model.records import ProjectRecord

METADATA = {
    "uid": "u",
    "namespace": "n",
    "name": "p",
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "resourceVersion": "1",
}
T = TypeVar("T")


def _via_informer(parse: Callable[[Object], T | None], use: Callable[[T], object]) -> Any:
    log = logging.getLogger("runai.kubernetes")

    def reading(found: dict[str, Any]) -> None:
        informer = Informer(cast("Api", None), "/", parse, lambda: None)
        before = log.level
        log.setLevel(logging.CRITICAL)  # it logs each unreadable object
        try:
            informer.apply(found)
        finally:
            log.setLevel(before)
        parsed = informer.objects.get(key_of(found))
        if parsed is not None:
            use(parsed)

    return reading


def _use_demands(demands: Demands) -> None:
    labels = {"zone": "a", "rank": "3", "odd": ""}
    obstacle(demands, "gpu-0", labels, (Taint("k", "v", "NoSchedule"),), {"rdma/hca": 1})
    accepted_values(demands, "zone")
    hash(demands)


def _use_pod(pod: Pod) -> None:
    _use_demands(pod.demands)
    assert pod.milli_gpus(16_000) >= 0
    # Messages format a pod; Python refuses to format a number of thousands of digits.
    str(pod)


def _use_worker_pod(found: WorkerPod) -> None:
    _use_pod(found.pod)
    str((exit_of(found, is_stopping=False), exit_of(found, is_stopping=True), found.key))


def _use_job(job: Job) -> None:
    for pod in (job.template, *job.templates[:3]):
        _use_pod(pod)
    groups = PodGrouping().groups([], {job.uid: job}, {}, "default", awaited={job.uid})
    # No Job may make us build more pods than fit into memory.
    assert sum(len(group.pods) for group in groups) <= 10_000
    assert len(job.templates) <= 10_000
    assert len(job.completed) <= 100_000
    str((job.minimum, [group.refusal for group in groups], sum(job.pauses)))
    if job.spec:
        str(job.spec.gpus * job.spec.workers)


def _use_node(node: KubeNode) -> None:
    obstacle(Demands(), node.name, node.labels, node.taints, node.stock)
    assert len(inventory(node, {}, [])) <= 10_000
    str(node)


def _use_project(record: ProjectRecord) -> None:
    for_core([record], misplaced([record]))
    str(manifest(record.spec))


def _use_claim(claim: Claim, volume: Volume, of_class: StorageClass) -> None:
    storage = Storage(
        {f"n/{claim.name}": claim},
        {volume.name: volume},
        {claim.class_name: of_class},
    )
    for _result in (storage.terms(claim), storage.waiting(POD), placed(POD, storage)):
        _use_demands(placed(POD, storage).demands)
    storage.choose(claim, "gpu-0", {"zone": "a"}, ())


POD = read_pod(
    {
        "metadata": METADATA,
        "spec": {
            "containers": [],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "p"}}],
        },
    }
)
CLAIM = read_claim({"metadata": METADATA, "spec": {"storageClassName": "fast"}})
VOLUME = read_volume({"metadata": METADATA, "spec": {"storageClassName": "fast"}})
CLASS = read_class({"provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer"})

READERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "pod": _via_informer(EVERYTHING.read_pod, _use_pod),
    "worker's pod": _via_informer(read_worker_pod, _use_worker_pod),
    "Job": _via_informer(EVERYTHING.read_job, _use_job),
    "PyTorchJob": _via_informer(EVERYTHING.read_pytorch_job, _use_job),
    "node": _via_informer(read_node, _use_node),
    "Project": _via_informer(read_project, _use_project),
    "claim": _via_informer(read_claim, lambda claim: _use_claim(claim, VOLUME, CLASS)),
    "volume": _via_informer(read_volume, lambda volume: _use_claim(CLAIM, volume, CLASS)),
    "storage class": _via_informer(read_class, lambda found: _use_claim(CLAIM, VOLUME, found)),
}


def read_as(kind: str) -> Callable[[bytes], object]:
    """Return the parser of a kind's objects, from their JSON as the API server sends it."""

    def reading(content: bytes) -> None:
        try:
            found = decoded(content)
        except ValueError:
            return  # the API server sends only JSON
        if isinstance(found, dict):
            metadata = found.get("metadata")
            own = metadata if isinstance(metadata, dict) else {}
            READERS[kind]({**found, "metadata": {**own, **METADATA}})

    return reading


def as_gpu_job(content: bytes) -> None:
    """Parse a resource of a submitted job, and write its rows again."""
    found = _json_object(content)
    read = read_gpu_job({**found, "metadata": METADATA})
    if read.rows:
        status(read.rows, read.writer)


def _json_object(content: bytes) -> dict[str, Any]:
    try:
        found = decoded(content)
    except ValueError:
        return {}  # the API server sends only JSON
    return found if isinstance(found, dict) else {}


def _annotated(content: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    # The API server accepts only UTF-8.
    text = content.decode(errors="replace")
    first, _, rest = text.partition("|")
    return {name: rest for name in names if name.endswith(first)} or dict.fromkeys(names, text)


POD_NOTES = (
    "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", PRIORITY,
    "runai/granted", "runai/reservation", "batch.kubernetes.io/job-completion-index",
    "hub.jupyter.org/username", "hub.jupyter.org/servername",
)  # fmt: skip
POD_LABELS = ("runai/project", "runai/kind", "kai.scheduler/queue", "runai/gang", "runai/elastic")


def as_annotated_pod(content: bytes) -> None:
    """Parse a pod with these annotations and labels: no text in them may get it dropped."""
    metadata = {
        **METADATA,
        "annotations": _annotated(content, POD_NOTES),
        "labels": _annotated(content, POD_LABELS),
    }
    _use_pod(read_pod({"metadata": metadata, "spec": {"containers": [], "nodeName": "a"}}))


def as_annotated_job(content: bytes) -> None:
    """Parse a Job with these annotations: no text in them may get it dropped."""
    notes = _annotated(content, (SPEC, PAUSES, STARTS, PRIORITY))
    spec: dict[str, Any] = {"template": {"spec": {"containers": []}}}
    _use_job(read_job({"metadata": {**METADATA, "annotations": notes}, "spec": spec}))
