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


def pod_path(pod: Pod, part: str = "") -> str:
    """Return the path of a pod, or of a subresource such as `status`."""
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    return f"{path}/{part}" if part else path


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
    """Return an Eviction of a pod; with `version`, only if that is still its resourceVersion."""
    only = {"uid": pod.uid} | ({"resourceVersion": version} if version else {})
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": only},
    }


async def report_waiting(api: Api, pod: Pod, code: str, sentence: str, node: str = "") -> None:
    """Write why a pod waits, as its condition and as an Event."""
    await show_waiting(api, pod, code, sentence, node)
    await create_event(api, pod, "Waiting", sentence)


async def show_waiting(api: Api, pod: Pod, code: str, sentence: str, node: str = "") -> None:
    """Write why a pod waits as its condition, with its nominated `node` if any."""
    word = "Unschedulable" if code in _UNSCHEDULABLE else _word(code)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": word,
        "message": sentence,
        "lastTransitionTime": _now(),
    }
    # With the UID: a pod recreated under the same name is another pod.
    status = {"conditions": [condition], "nominatedNodeName": node or None}
    body = {"metadata": {"uid": pod.uid}, "status": status}
    await api.patch(pod_path(pod, "status"), body, strategic=True)


_FOR_GOOD = {
    DELETED: ("DeletedByUser", "its user deleted this element of the array"),
    TIMED_OUT: ("TimedOut", "it ran its time out"),
}


def ends_for_good(pod: Pod, kind: str = DELETED) -> dict[str, Any]:
    """Return the strategic merge patch of a pod's status by which its Job does not try it again.

    A pod without a node never ends by itself: no kubelet has it.
    """
    reason, message = _FOR_GOOD[kind]
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
    api: Api, of: Pod | Job, word: str, sentence: str, *, bad: bool = False
) -> None:
    """Create an Event about a pod or a Job."""
    now = _now()
    event = {
        "metadata": {"generateName": f"{of.name}.", "namespace": of.namespace},
        "involvedObject": {
            "apiVersion": of.api_version if isinstance(of, Job) else "v1",
            "kind": of.kind if isinstance(of, Job) else "Pod",
            "namespace": of.namespace,
            "name": of.name,
            "uid": of.uid,
        },
        "type": "Warning" if bad else "Normal",
        "reason": word,
        "message": sentence,
        "source": {"component": SCHEDULER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    await api.create(f"/api/v1/namespaces/{of.namespace}/events", event)


def why(reason: Reason) -> str:
    """Return a decision's reason for users, with its rule."""
    return f"{reason.text} ({reason.rule})" if reason.rule else reason.text


def _word(code: str) -> str:
    """Convert a reason code to Kubernetes' CamelCase.

    >>> _word("over_build_quota")
    'OverBuildQuota'
    """
    return "".join(part.capitalize() for part in code.split("_"))


def _now() -> str:
    return dt.datetime.fromtimestamp(int(time.time()), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
