"""Pod conditions, Events, and the bodies of bind and evict requests.

`kubectl describe pod` and KubeSpawner's page show Events; `kubectl get pod -o yaml`, dashboards and
autoscalers read the condition `PodScheduled`.
"""

import datetime as dt
import time
from collections.abc import Mapping
from typing import Any

from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.objects.core_objects import SCHEDULER, Pod
from runai.hub_service.clusters.kubernetes.objects.job_manifest import DELETED, TIMED_OUT
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.scheduler.model.snapshot import Reason

# Autoscalers add nodes for this reason, so it is set only where more nodes would help.
_UNSCHEDULABLE = frozenset({"no_room", "fragmented", "no_such_node", "lost_devices"})


def pod_path(pod: Pod, subresource: str = "") -> str:
    """Return the path of a pod, or of a subresource such as `status`."""
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    return f"{path}/{subresource}" if subresource else path


def binding(pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a Binding of a pod to a node; it also sets the annotations."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        # With the UID: a pod recreated under the same name is another pod.
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "annotations": dict(annotations or {}),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def eviction(pod: Pod, version: str = "") -> dict[str, Any]:
    """Return an Eviction of a pod; with `version`, refused if that is not its resourceVersion."""
    preconditions = {"uid": pod.uid} | ({"resourceVersion": version} if version else {})
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": preconditions},
    }


async def report_waiting(api: Api, pod: Pod, code: str, sentence: str, node: str = "") -> None:
    """Write why a pod waits, as its condition and as an Event."""
    await patch_wait_condition(api, pod, code, sentence, node)
    await create_event(api, pod, "Waiting", sentence)


async def patch_wait_condition(
    api: Api, pod: Pod, code: str, sentence: str, node: str = ""
) -> None:
    """Write why a pod waits as its condition, with its nominated `node` if any."""
    reason = "Unschedulable" if code in _UNSCHEDULABLE else _camel_case(code)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": sentence,
        "lastTransitionTime": _now(),
    }
    # With the UID: a pod recreated under the same name is another pod.
    status = {"conditions": [condition], "nominatedNodeName": node or None}
    body = {"metadata": {"uid": pod.uid}, "status": status}
    await api.patch(pod_path(pod, "status"), body, strategic=True)


_FINAL_REASONS = {
    DELETED: ("DeletedByUser", "its user deleted this element of the array"),
    TIMED_OUT: ("TimedOut", "it ran its time out"),
}


def final_status(pod: Pod, kind: str = DELETED) -> dict[str, Any]:
    """Return the patch of a pod's status by which its Job does not create it again.

    It is a strategic merge patch. It fails a pod without a node, which no kubelet would end.
    """
    reason, message = _FINAL_REASONS[kind]
    condition = {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": _now(),
    }
    status: dict[str, Any] = {"conditions": [condition]}
    if not pod.node:
        status["phase"] = "Failed"
    return {"metadata": {"uid": pod.uid}, "status": status}


async def create_event(
    api: Api, subject: Pod | Job, reason: str, message: str, *, is_warning: bool = False
) -> None:
    """Create an Event about a pod or a Job."""
    now = _now()
    event = {
        "metadata": {"generateName": f"{subject.name}.", "namespace": subject.namespace},
        "involvedObject": {
            "apiVersion": subject.api_version if isinstance(subject, Job) else "v1",
            "kind": subject.kind if isinstance(subject, Job) else "Pod",
            "namespace": subject.namespace,
            "name": subject.name,
            "uid": subject.uid,
        },
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "message": message,
        "source": {"component": SCHEDULER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    await api.create(f"/api/v1/namespaces/{subject.namespace}/events", event)


def reason_sentence(reason: Reason) -> str:
    """Return a decision's reason for users, with its rule."""
    return f"{reason.text} ({reason.rule})" if reason.rule else reason.text


def _camel_case(code: str) -> str:
    """Convert a reason code to Kubernetes' CamelCase.

    >>> _camel_case("over_build_quota")
    'OverBuildQuota'
    """
    return "".join(part.capitalize() for part in code.split("_"))


def _now() -> str:
    return dt.datetime.fromtimestamp(int(time.time()), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
