"""Pods of our own: one for each start of a worker, on the node that was decided. Pure.

A pod is made once under a name that has job, index and attempt, so a repeated request makes no
second one. kube-scheduler checks the decision and binds the pod.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.gpu_jobs.gpu_job import API_VERSION
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    INDEX,
    WORKLOAD_LABEL,
    Pod,
    condition,
    figure,
    project_label,
    read_pod,
)
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import RESUMED
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.model.records import WorkerRecord, WorkloadId, WorkloadRecord, workload_id

ATTEMPT_LABEL: Final = "runai/attempt"
GATE: Final = "runai/reserved"
"""Scheduling gate of a pod whose devices are reserved, and still in use."""
SCHEDULER_NAME: Final = "default-scheduler"
_UNSCHEDULABLE: Final = "Unschedulable"
_DISRUPTED: Final = "DisruptionTarget"


class Resource(NamedTuple):
    """Name and UID of the resource that owns a job's pods."""

    name: str
    uid: str


class WorkerPod(NamedTuple):
    """A pod of our own as it was read."""

    pod: Pod
    workload: WorkloadId
    attempt: int
    refusal: str
    """kube-scheduler's sentence while it cannot place the pod; else ""."""
    disruption: str
    """Why others ended the pod, as a clause; else ""."""

    @property
    def key(self) -> tuple[int, int]:
        """Return the index of its worker and the attempt."""
        return self.pod.index or 0, self.attempt


def pod_name(resource: str, index: int, attempt: int) -> str:
    """Return the name of a worker's pod.

    >>> pod_name("vision-exp", 0, 2)
    'vision-exp-0-2'
    """
    return f"{resource}-{index}-{attempt}"


def worker_pod(
    template: Object,
    row: WorkloadRecord,
    worker: WorkerRecord,
    attempt: int,
    resource: Resource,
    *,
    is_gated: bool,
) -> dict[str, Any]:
    """Return the pod of a worker on its node, from the template of its job's pods.

    `is_gated`: the pod has a gate; a nomination keeps the place until the gate is taken away.
    """
    metadata, spec = template["metadata"], template["spec"]
    name = pod_name(resource.name, worker.index, attempt)
    is_on_node = {"key": "metadata.name", "operator": "In", "values": [worker.node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [is_on_node]}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**metadata["labels"], ATTEMPT_LABEL: str(attempt)},
            "annotations": {
                **metadata["annotations"],
                INDEX: str(worker.index),
                RESUMED: "1" if row.resumed else "0",
            },
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "GpuJob",
                    "name": resource.name,
                    "uid": resource.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            **spec,
            "hostname": f"{resource.name}-{worker.index}",
            "schedulerName": SCHEDULER_NAME,
            # The class preempts no pod: quotas decide about victims.
            "priorityClassName": "train" if row.spec.preemptible else "build",
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            **({"schedulingGates": [{"name": GATE}]} if is_gated else {}),
        },
    }


def nomination(worker: WorkerRecord) -> Object:
    """Return the merge patch of a pod's status that keeps its place on the node."""
    return {"status": {"nominatedNodeName": worker.node}}


OPENED: Final[Object] = {"spec": {"schedulingGates": None}}
"""Merge patch that takes the gate away."""


def read_worker_pod(found: Object) -> WorkerPod | None:
    """Parse a pod; None: a foreign one."""
    labels = found["metadata"].get("labels", {})
    attempt = figure(labels.get(ATTEMPT_LABEL, ""))
    if attempt is None or WORKLOAD_LABEL not in labels:
        return None
    status = found.get("status", {})
    return WorkerPod(
        read_pod(found),
        workload_id(project_label(labels), labels[WORKLOAD_LABEL]),
        attempt,
        _refusal(condition(status, "PodScheduled")),
        _disruption(condition(status, _DISRUPTED)),
    )


def _refusal(scheduled: Mapping[str, Any]) -> str:
    if scheduled.get("reason") != _UNSCHEDULABLE:
        return ""
    return str(scheduled.get("message", "") or "no reason given")


def _disruption(disrupted: Mapping[str, Any]) -> str:
    if disrupted.get("status") != "True":
        return ""
    return str(disrupted.get("message", "") or disrupted.get("reason", "") or "no reason given")


def exit_of(found: WorkerPod | None, *, is_stopping: bool) -> ExitStatus:
    """Return the exit of a worker, given its ended pod; None: the pod is gone."""
    if found is None:
        text = "" if is_stopping else "its pod was deleted"
        return ExitStatus(None, stop_requested=is_stopping, lost=not is_stopping, text=text)
    pod = found.pod
    if is_stopping:
        return ExitStatus(pod.exit_code, stop_requested=True, killed=pod.is_killed)
    if found.disruption or pod.exit_code is None:
        why = found.disruption or pod.why or "no container of it ran"
        return ExitStatus(None, lost=True, text=f"its pod was ended on {pod.node or '?'}: {why}")
    return ExitStatus(pod.exit_code)
