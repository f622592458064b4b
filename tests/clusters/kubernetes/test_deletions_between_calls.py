"""Objects deleted while an API call is in flight leave no reservation without a sharing pod.

No device is shared without a reservation either.

    call   the six calls that reserve a device, learn its UUID, bind and evict a sharing pod, and
           delete the reservation
    target  is deleted before the call arrives: the requesting pod, the reservation or the node

`plugin.sync_pods()` asserts each time that no device is oversubscribed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from clusters.kubernetes.gpu_sharing import (
    annotations_of,
    devices_of,
    events,
    fraction_pod,
    wait_message,
)
from clusters.kubernetes.test_faults_between_calls import (
    CALLS,
    FaultyRun,
    ReclaimedDevice,
    ReturnedDevice,
    SharingScenario,
)
from control_plane.calls import ApiRefused
from control_plane.device_plugin import DEVICE, DevicePlugin
from control_plane.faults import FaultyServer
from control_plane.lab import ClusterLab
from control_plane.objects import pod
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]

NODES = "/api/v1/nodes"
STRATEGIC = "application/strategic-merge-patch+json"
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}


def shared_devices_are_reserved(scenario: SharingScenario) -> bool:
    """Return True if exactly the devices that bound pods share are reserved."""
    shared: dict[str, str] = {}
    for found in scenario.lab.namespace.pods():
        if found["metadata"]["name"] in scenario.visible_devices:
            names = annotations_of(found)["runai/reservation"].split(",")
            devices = annotations_of(found)["runai/visible-devices"].split(",")
            shared |= dict(zip(names, devices, strict=True))
    reserved = {
        r["metadata"]["name"]: annotations_of(r).get(DEVICE, "")
        for r in scenario.plugin.reservations()
    }
    return reserved == shared


class RequestingPodDeletion:
    """The pod of the call; the other pod goes on as if it had never existed."""

    def delete(self, scenario: SharingScenario) -> None:
        self.name = "both" if isinstance(scenario, ReturnedDevice | ReclaimedDevice) else "one"
        scenario.lab.namespace.delete(self.name)

    def is_complete(self, scenario: SharingScenario) -> bool:
        return self.name not in {p["metadata"]["name"] for p in scenario.lab.namespace.pods()}

    def after(self, scenario: SharingScenario) -> None:
        """Do nothing more."""

    def is_over(self, scenario: SharingScenario) -> bool:
        if isinstance(scenario, ReturnedDevice):
            return not scenario.visible_devices
        if isinstance(scenario, ReclaimedDevice):
            return len(scenario.visible_devices) == 2
        return set(scenario.visible_devices) == {"two"}


class SharingPodsDeletion(RequestingPodDeletion):
    """All pods that would share the device."""

    def delete(self, scenario: SharingScenario) -> None:
        for name in ("one", "two"):
            scenario.lab.namespace.delete(name)

    def is_complete(self, scenario: SharingScenario) -> bool:
        return not scenario.lab.namespace.pods()

    def is_over(self, scenario: SharingScenario) -> bool:
        return not scenario.plugin.reservations()


class ReservationDeletion(RequestingPodDeletion):
    """The reservation pod, deleted as by an administrator's `kubectl delete`."""

    def delete(self, scenario: SharingScenario) -> None:
        (found,) = scenario.plugin.reservations()
        self.uid = found["metadata"]["uid"]
        scenario.plugin.plane.request("DELETE", _path(found))

    def is_complete(self, scenario: SharingScenario) -> bool:
        return self.uid not in {r["metadata"]["uid"] for r in scenario.plugin.reservations()}

    def is_over(self, scenario: SharingScenario) -> bool:
        return scenario.is_over()


class NodeDeletion(RequestingPodDeletion):
    """The node, deleted for good and replaced by another one a moment later."""

    def delete(self, scenario: SharingScenario) -> None:
        scenario.lab.forget(f"{NODES}/gpu-0")

    def is_complete(self, scenario: SharingScenario) -> bool:
        names = {
            n["metadata"]["name"] for n in scenario.plugin.plane.request("GET", NODES)["items"]
        }
        return "gpu-0" not in names

    def after(self, scenario: SharingScenario) -> None:
        _add_second_node(scenario.lab, scenario.plugin)
        if not isinstance(scenario, ReturnedDevice | ReclaimedDevice):
            scenario.lab.namespace.create(fraction_pod("three", "0.5"))

    def is_over(self, scenario: SharingScenario) -> bool:
        _collect_garbage_pods(scenario.lab, scenario.plugin)
        pods = scenario.lab.namespace.pods()
        nodes = {p["metadata"]["name"]: p["spec"].get("nodeName") for p in pods}
        if isinstance(scenario, ReturnedDevice | ReclaimedDevice):
            return nodes["both"] == "gpu-1" and scenario.is_over()
        # The garbage collector removes the pods that were bound to the old node.
        return "three" in nodes and set(nodes.values()) == {"gpu-1"}


DELETIONS = {
    "requesting pod": RequestingPodDeletion,
    "all sharing pods": SharingPodsDeletion,
    "reservation": ReservationDeletion,
    "node": NodeDeletion,
}
ROWS = [
    *((call, "requesting pod") for call in CALLS),
    ("bind reservation", "all sharing pods"),
    ("bind sharing pod", "all sharing pods"),
    ("bind reservation", "reservation"),
    ("bind sharing pod", "reservation"),
    ("evict sharing pod", "reservation"),
    ("delete reservation", "reservation"),
    ("create reservation", "node"),
    ("bind sharing pod", "node"),
    ("evict sharing pod", "node"),
]


@pytest.mark.parametrize(("call", "target"), [pytest.param(*r, id=": ".join(r)) for r in ROWS])
def test_deletion_during_a_gpu_sharing_api_call_leaves_no_reservation_behind(
    two_gpus, kubeconfig, plugin, until, call, target
):
    method, path_part, scenario_type = CALLS[call]
    scenario, deletion = scenario_type(two_gpus, plugin), DELETIONS[target]()
    run = FaultyRun(scenario, kubeconfig, until)
    with run.server, Scheduler(run.server.kubeconfig) as scheduler:
        run.wait(scheduler, scenario.begin, "the preconditions are met")
        run.server.requests.clear()
        release_call = run.server.hold(method, path_part)
        scenario.trigger_call()
        run.wait(scheduler, lambda: run.was_requested(method, path_part), "the call is on its way")
        deletion.delete(scenario)
        run.wait(scheduler, lambda: deletion.is_complete(scenario), f"{target} is gone")
        release_call()
        deletion.after(scenario)
        run.wait(
            scheduler,
            lambda: deletion.is_over(scenario) and shared_devices_are_reserved(scenario),
            "every pod has its place",
        )
        for found in two_gpus.namespace.pods():
            if "job-name" not in found["metadata"].get("labels", {}):
                two_gpus.namespace.delete(found["metadata"]["name"])
        if scenario_type is ReclaimedDevice:
            two_gpus.namespace.delete("lent", is_job=True)
        run.wait(scheduler, lambda: not plugin.reservations(), "no reservation is left")


def test_node_drain_leaves_a_shared_device_reserved_until_its_sharing_pods_end(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    with Scheduler(kubeconfig):
        for name in ("one", "two"):
            work.create(fraction_pod(name, "0.5"))
        until(lambda: set(devices_of(work)) == {"one", "two"}, what="both are bound")
        before, (reservation,) = devices_of(work), plugin.reservations()
        _request_eviction(two_gpus, reservation)
        work.create(pod("whole", project="vision"))
        until(lambda: work.node_of("whole"), what="the whole pod has the other device")
        (replacement,) = plugin.reservations()
        assert _uid(replacement) != _uid(reservation)
        assert annotations_of(replacement)[DEVICE] == annotations_of(reservation)[DEVICE]
        cordon = {"spec": {"unschedulable": True}}
        two_gpus.plane.request("PATCH", f"{NODES}/gpu-0", cordon, content_type=STRATEGIC)
        assert devices_of(work) == before
        for name in before:
            _request_eviction(two_gpus, work.pod(name))
        until(lambda: not plugin.reservations(), what="no reservation is left")

    assert events(work, "DeviceLost") == events(work, "DeviceUnreserved") == []


def test_scheduler_reserves_no_device_on_a_deleted_node(two_gpus, kubeconfig, plugin, until):
    work = two_gpus.namespace
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig) as scheduler:
        for name in ("one", "two"):
            work.create(fraction_pod(name, "0.5"))
        until(lambda: set(devices_of(work)) == {"one", "two"}, what="both are bound")
        (reservation,) = plugin.reservations()
        server.requests.clear()
        two_gpus.forget(f"{NODES}/gpu-0")
        until(
            lambda: not scheduler.cluster.cache.informers.nodes.objects, what="the deletion is seen"
        )
        # The garbage collector deletes the pods one by one: here the reservation is the first.
        two_gpus.plane.request("DELETE", _path(reservation), {"gracePeriodSeconds": 0})
        work.create(fraction_pod("three", "0.5"))
        until(lambda: wait_message(work.pod("three")), what="the third pod has a reason to wait")
        assert not plugin.reservations()
        _collect_garbage_pods(two_gpus, plugin)
        _add_second_node(two_gpus, plugin)
        until(lambda: set(devices_of(work)) == {"three"}, what="the third pod is bound")

    (created_path,) = {
        path for method, path in server.requests if method == "POST" and "gpu-res" in path
    }
    assert created_path != f"{_path(reservation)}/binding"
    assert events(work, "DeviceLost") == []


def _add_second_node(lab: ClusterLab, plugin: DevicePlugin) -> None:
    plugin.nodes["gpu-1"] = ["GPU-c", "GPU-d"]
    lab.node("gpu-1", gpus=2, labels={"nvidia.com/gpu.memory": "16000"})


def _collect_garbage_pods(lab: ClusterLab, plugin: DevicePlugin) -> None:
    """Delete pods like the Kubernetes pod garbage collector, 40 s after their node is gone."""
    node_names = {n["metadata"]["name"] for n in lab.plane.request("GET", NODES)["items"]}
    for found in (*lab.namespace.pods(), *plugin.reservations()):
        if found["spec"].get("nodeName", "") not in {*node_names, ""}:
            path = _path(found)
            failed = {"status": {"phase": "Failed", "conditions": [DISRUPTED]}}
            with suppress(ApiRefused):  # gone already: its deletion had begun
                lab.plane.request("PATCH", f"{path}/status", failed, content_type=STRATEGIC)
                lab.plane.request("DELETE", path, {"gracePeriodSeconds": 0})


def _request_eviction(lab: ClusterLab, found: dict[str, Any]) -> None:
    """Request an eviction, as `kubectl drain` does."""
    metadata = {key: found["metadata"][key] for key in ("name", "namespace")}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    lab.plane.request("POST", f"{_path(found)}/eviction", eviction)


def _path(found: dict[str, Any]) -> str:
    metadata = found["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _uid(found: dict[str, Any]) -> str:
    return str(found["metadata"]["uid"])
