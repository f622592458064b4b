"""Helpers of the GPU sharing tests: request parts of GPUs, and read the results."""

from __future__ import annotations

from typing import Any

from control_plane.device_plugin import DevicePlugin
from control_plane.objects import SCHEDULER, Namespace, pod
from control_plane.scheduling import Scheduler
from waiting import eventually


def fraction_pod(name: str, fraction: str, *, devices: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a notebook that requests a part of one GPU, or of each of several."""
    annotations = {"gpu-fraction": fraction}
    annotations |= {"gpu-fraction-num-devices": str(devices)} if devices > 1 else {}
    return pod(name, 0, project="vision", annotations=annotations, **fields)


def annotations_of(found: dict[str, Any]) -> dict[str, str]:
    """Return a pod's annotations."""
    annotations: dict[str, str] = found["metadata"].get("annotations", {})
    return annotations


def devices_of(namespace: Namespace) -> dict[str, str]:
    """Return the devices visible to each bound pod, by pod name."""
    return {
        p["metadata"]["name"]: annotations_of(p)["runai/visible-devices"]
        for p in namespace.pods()
        if "nodeName" in p["spec"] and "runai/visible-devices" in annotations_of(p)
    }


def wait_message(found: dict[str, Any]) -> str:
    """Return the message of a pod's `PodScheduled` condition: why it waits."""
    conditions = found["status"].get("conditions", [])
    return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")


def events(namespace: Namespace, word: str) -> list[str]:
    """Return the messages of the Events with this reason."""
    return [event["message"] for event in namespace.events() if event["reason"] == word]


def events_of(namespace: Namespace, subject: dict[str, Any], word: str) -> list[str]:
    """Return the messages of our Events about an object with this reason."""
    uid = subject["metadata"]["uid"]
    return [
        event["message"]
        for event in namespace.events()
        if event["involvedObject"]["uid"] == uid
        and (event["source"].get("component"), event["reason"]) == (SCHEDULER, word)
    ]


def delete_reservation(plugin: DevicePlugin) -> None:
    """Delete a reservation at once, like a lost node or a `kubectl delete`."""
    (found,) = plugin.reservations()
    path = f"/api/v1/namespaces/runai-reservation/pods/{found['metadata']['name']}"
    plugin.plane.request("DELETE", path, {"gracePeriodSeconds": 0})


def give_device_to_foreign_pod(work: Namespace, plugin: DevicePlugin, scheduler: Scheduler) -> None:
    """Give the shared device, as a whole, to another scheduler's pod."""
    plugin.is_strict = False  # for a moment both pods have it
    plugin.first = "theirs"  # once the reservation is back: the other scheduler was faster
    delete_reservation(plugin)
    work.create(pod("theirs", 2, nodeName="gpu-0", schedulerName="theirs"))
    eventually(lambda: work.pod("theirs")["status"]["phase"] == "Running", what="the pod runs")
    plugin.sync_pods()
    assert f"{work.name}/theirs" in {key for key, _has in plugin.has.values()}
    plugin.report(scheduler)
