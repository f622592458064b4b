"""Objects deleted while an API call is in flight leave no reservation without a sharing pod.

No device is shared without a reservation either.

    call   the six calls that reserve a device, learn its UUID, bind and evict a sharing pod, and
           delete the reservation
    which  object is deleted before the call arrives: the requesting pod, the reservation, the node

`plugin.look()` asserts each time that no device is oversubscribed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from clusters.kubernetes.sharing_world import events, half, notes, sentence, visible
from clusters.kubernetes.test_faults_between_calls import CALLS, GivenBack, Play, Story, TakenBack
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


def are_kept(story: Story) -> bool:
    """Return True if exactly the devices that bound pods share are reserved."""
    shared: dict[str, str] = {}
    for found in story.lab.namespace.pods():
        if found["metadata"]["name"] in story.seen:
            names = notes(found)["runai/reservation"].split(",")
            devices = notes(found)["runai/visible-devices"].split(",")
            shared |= dict(zip(names, devices, strict=True))
    kept = {r["metadata"]["name"]: notes(r).get(DEVICE, "") for r in story.plugin.reservations()}
    return kept == shared


class WhoAsked:
    """The pod of the call; the other pod goes on as if it had never existed."""

    def delete(self, story: Story) -> None:
        self.name = "both" if isinstance(story, GivenBack | TakenBack) else "one"
        story.lab.namespace.delete(self.name)

    def is_gone(self, story: Story) -> bool:
        return self.name not in {p["metadata"]["name"] for p in story.lab.namespace.pods()}

    def after(self, story: Story) -> None:
        """Do nothing more."""

    def is_over(self, story: Story) -> bool:
        if isinstance(story, GivenBack):
            return not story.seen
        if isinstance(story, TakenBack):
            return len(story.seen) == 2
        return set(story.seen) == {"two"}


class Everybody(WhoAsked):
    """All pods that would share the device."""

    def delete(self, story: Story) -> None:
        for name in ("one", "two"):
            story.lab.namespace.delete(name)

    def is_gone(self, story: Story) -> bool:
        return not story.lab.namespace.pods()

    def is_over(self, story: Story) -> bool:
        return not story.plugin.reservations()


class Reservation(WhoAsked):
    """The reservation pod, deleted as by an administrator's `kubectl delete`."""

    def delete(self, story: Story) -> None:
        (found,) = story.plugin.reservations()
        self.uid = found["metadata"]["uid"]
        story.plugin.plane.request("DELETE", _path(found))

    def is_gone(self, story: Story) -> bool:
        return self.uid not in {r["metadata"]["uid"] for r in story.plugin.reservations()}

    def is_over(self, story: Story) -> bool:
        return story.is_over()


class Node(WhoAsked):
    """The node, deleted for good and replaced by another one a moment later."""

    def delete(self, story: Story) -> None:
        story.lab.forget(f"{NODES}/gpu-0")

    def is_gone(self, story: Story) -> bool:
        names = {n["metadata"]["name"] for n in story.plugin.plane.request("GET", NODES)["items"]}
        return "gpu-0" not in names

    def after(self, story: Story) -> None:
        _another_node(story.lab, story.plugin)
        if not isinstance(story, GivenBack | TakenBack):
            story.lab.namespace.create(half("three"))

    def is_over(self, story: Story) -> bool:
        _bury(story.lab, story.plugin)
        pods = story.lab.namespace.pods()
        nodes = {p["metadata"]["name"]: p["spec"].get("nodeName") for p in pods}
        if isinstance(story, GivenBack | TakenBack):
            return nodes["both"] == "gpu-1" and story.is_over()
        # The garbage collector removes the pods that were bound to the old node.
        return "three" in nodes and set(nodes.values()) == {"gpu-1"}


WHO = {
    "who asked": WhoAsked,
    "everybody": Everybody,
    "the reservation": Reservation,
    "the node": Node,
}
ROWS = [
    *((call, "who asked") for call in CALLS),
    ("binding the reservation", "everybody"),
    ("binding who shares", "everybody"),
    ("binding the reservation", "the reservation"),
    ("binding who shares", "the reservation"),
    ("evicting who shares", "the reservation"),
    ("deleting the reservation", "the reservation"),
    ("making the reservation", "the node"),
    ("binding who shares", "the node"),
    ("evicting who shares", "the node"),
]


@pytest.mark.parametrize(("call", "who"), [pytest.param(*r, id="-".join(r)) for r in ROWS])
def test_deletion_during_a_call_leaves_no_reservation_behind(
    ready, rights, plugin, until, call, who
):
    method, part, kind = CALLS[call]
    story, deletion = kind(ready, plugin), WHO[who]()
    play = Play(story, rights, until)
    with play.server, Scheduler(play.server.kubeconfig) as scheduler:
        play.wait(scheduler, story.begin, "it begins")
        play.server.requests.clear()
        go_on = play.server.hold(method, part)
        story.go_on()
        play.wait(scheduler, lambda: play.asked(method, part), "the call is on its way")
        deletion.delete(story)
        play.wait(scheduler, lambda: deletion.is_gone(story), f"{who} is gone")
        go_on()
        deletion.after(story)
        play.wait(
            scheduler, lambda: deletion.is_over(story) and are_kept(story), "all are where they may"
        )
        for found in ready.namespace.pods():
            if "job-name" not in found["metadata"].get("labels", {}):
                ready.namespace.delete(found["metadata"]["name"])
        if kind is TakenBack:
            ready.namespace.delete("lent", is_job=True)
        play.wait(scheduler, lambda: not plugin.reservations(), "nothing is kept for nobody")


def test_drain_keeps_a_device_reserved_until_its_sharing_pods_are_gone(
    ready, rights, plugin, until
):
    work = ready.namespace
    with Scheduler(rights):
        for name in ("one", "two"):
            work.create(half(name))
        until(lambda: set(visible(work)) == {"one", "two"}, what="both are bound")
        before, (kept,) = visible(work), plugin.reservations()
        _evict(ready, kept)
        work.create(pod("whole", project="vision"))
        until(lambda: work.node_of("whole"), what="the other device is somebody's")
        (again,) = plugin.reservations()
        assert _uid(again) != _uid(kept)
        assert notes(again)[DEVICE] == notes(kept)[DEVICE]
        cordon = {"spec": {"unschedulable": True}}
        ready.plane.request("PATCH", f"{NODES}/gpu-0", cordon, content_type=STRATEGIC)
        assert visible(work) == before
        for name in before:
            _evict(ready, work.pod(name))
        until(lambda: not plugin.reservations(), what="nothing is kept for nobody")

    assert events(work, "DeviceLost") == events(work, "DeviceUnreserved") == []


def test_scheduler_reserves_no_device_on_a_deleted_node(ready, rights, plugin, until):
    work = ready.namespace
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        for name in ("one", "two"):
            work.create(half(name))
        until(lambda: set(visible(work)) == {"one", "two"}, what="both are bound")
        (kept,) = plugin.reservations()
        server.requests.clear()
        ready.forget(f"{NODES}/gpu-0")
        until(lambda: not scheduler.cluster.cache.informers.nodes.objects, what="it has seen that")
        # The garbage collector deletes the pods one by one: here the reservation is the first.
        ready.plane.request("DELETE", _path(kept), {"gracePeriodSeconds": 0})
        work.create(half("three"))
        until(lambda: sentence(work.pod("three")), what="who comes now is told why he waits")
        assert not plugin.reservations()
        _bury(ready, plugin)
        _another_node(ready, plugin)
        until(lambda: set(visible(work)) == {"three"}, what="he has a device of the next node")

    (made,) = {path for method, path in server.requests if method == "POST" and "gpu-res" in path}
    assert made != f"{_path(kept)}/binding"
    assert events(work, "DeviceLost") == []


def _another_node(lab: ClusterLab, plugin: DevicePlugin) -> None:
    plugin.nodes["gpu-1"] = ["GPU-c", "GPU-d"]
    lab.node("gpu-1", gpus=2, labels={"nvidia.com/gpu.memory": "16000"})


def _bury(lab: ClusterLab, plugin: DevicePlugin) -> None:
    """Delete pods like the Kubernetes pod garbage collector, 40 s after their node is gone."""
    there = {n["metadata"]["name"] for n in lab.plane.request("GET", NODES)["items"]}
    for found in (*lab.namespace.pods(), *plugin.reservations()):
        if found["spec"].get("nodeName", "") not in {*there, ""}:
            path = _path(found)
            failed = {"status": {"phase": "Failed", "conditions": [DISRUPTED]}}
            with suppress(ApiRefused):  # gone already: its deletion had begun
                lab.plane.request("PATCH", f"{path}/status", failed, content_type=STRATEGIC)
                lab.plane.request("DELETE", path, {"gracePeriodSeconds": 0})


def _evict(lab: ClusterLab, found: dict[str, Any]) -> None:
    """Request an eviction, as `kubectl drain` does."""
    metadata = {key: found["metadata"][key] for key in ("name", "namespace")}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    lab.plane.request("POST", f"{_path(found)}/eviction", eviction)


def _path(found: dict[str, Any]) -> str:
    metadata = found["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _uid(found: dict[str, Any]) -> str:
    return str(found["metadata"]["uid"])
