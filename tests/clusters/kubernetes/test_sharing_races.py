"""Races between two API calls of GPU sharing.

No device is given twice and no pod is lost. `plugin.sync_pods()` asserts each time that no device
is oversubscribed. `test_faults_between_calls` covers calls that fail.
"""

from __future__ import annotations

import time

import pytest

from clusters.kubernetes.sharing_world import (
    delete_reservation,
    events,
    half,
    notes,
    sentence,
    visible,
)
from control_plane.faults import FaultyServer
from control_plane.objects import pod
from control_plane.scheduling import Scheduler
from runai.hub_service.model.cluster import NodeReport
from runai.hub_service.model.device import Device

pytestmark = pytest.mark.kubernetes


def both_share_one_device(ready, plugin) -> bool:
    devices_by_pod = visible(ready.namespace)
    return (
        len(devices_by_pod) == 2
        and len(set(devices_by_pod.values())) == 1
        and len(plugin.reservations()) == 1
    )


def test_restarted_scheduler_deletes_a_gpu_reservation_without_sharing_pods(
    ready, rights, plugin, until
):
    ready.namespace.create(half("one"))
    plugin.annotates = False
    with Scheduler(rights):
        until(plugin.reservations, what="a device is reserved")
    ready.namespace.delete("one")

    with Scheduler(rights):
        until(lambda: not plugin.reservations(), what="the reservation is gone")


def test_gpu_sharing_pod_waits_until_its_reserved_device_is_known(ready, rights, plugin, until):
    work = ready.namespace
    plugin.annotates = False

    with Scheduler(rights):
        work.create(half("one"))
        until(plugin.reservations, what="a device is reserved")
        work.create(half("two"))
        message = until(lambda: sentence(work.pod("two")), what="the second one is told")
        assert visible(work) == {}
        plugin.annotates = True
        until(lambda: both_share_one_device(ready, plugin), what="both share one device")

    assert message == "its place on gpu-0 is kept until its devices there are ready"


def test_gpu_reservation_is_not_deleted_while_a_sharing_pod_is_being_bound(
    ready, rights, plugin, until
):
    work = ready.namespace
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig):
        work.create(half("one"))
        until(lambda: visible(work), what="the first is bound")
        (before,) = plugin.reservations()
        go_on = server.hold("POST", "/pods/two/binding")
        work.create(half("two"))
        until(
            lambda: any("/pods/two/binding" in path for _method, path in server.requests),
            what="the second is being bound",
        )
        work.delete("one")
        until(lambda: len(work.pods()) == 1, what="the first is gone")
        go_on()
        until(lambda: "two" in visible(work), what="the second is bound")

        work.create(half("three"))
        until(lambda: "three" in visible(work), what="the third is bound")

    (after,) = plugin.reservations()
    assert before["metadata"]["uid"] == after["metadata"]["uid"]
    assert len(set(visible(work).values())) == 1


def test_gpu_reservation_is_not_deleted_while_a_sharing_pod_is_stopping(
    ready, rights, plugin, until
):
    work = ready.namespace
    with Scheduler(rights):
        work.create(half("one"))
        until(lambda: visible(work), what="it is bound")
        work.annotate("one", {"test/stops-in": "1s"})
        work.delete("one")
        work.create(half("two", "0.9"))
        until(lambda: "two" in visible(work), what="the next is bound")
        # The first has half of its device until it is gone, so they were never on one together.
        until(lambda: len(work.pods()) == 1, what="the first is gone")


def test_gpu_sharing_pod_is_bound_elsewhere_if_a_node_rejects_its_reservation(
    ready, rights, plugin, until
):
    work = ready.namespace
    plugin.turns_away = 1
    ready.node("gpu-1", gpus=1)
    plugin.nodes["gpu-1"] = ["GPU-c"]

    with Scheduler(rights):
        work.create(half("one"))
        until(lambda: visible(work), what="it is bound elsewhere")
        # An Event is sent after the change itself, when the API server has time for it.
        (message,) = until(lambda: events(work, "NoDevice"), what="it is told")

    assert "UnexpectedAdmissionError: Allocate failed" in message
    (reservation,) = plugin.reservations()
    assert reservation["spec"]["nodeName"] == work.node_of("one")
    assert reservation["spec"]["nodeName"] not in message


def test_gpu_reservation_without_a_reported_device_is_abandoned_after_a_minute(
    ready, rights, plugin, until
):
    work = ready.namespace
    plugin.annotates = False
    passed = 0.0

    with Scheduler(rights, clock=lambda: time.time() + passed):
        work.create(half("one"))
        until(plugin.reservations, what="a device is reserved")
        passed = 61.0
        work.create(half("two"))  # some other change
        until(lambda: events(work, "NoDevice"), what="it is told")

    assert "nobody said which device it has within 60 s" in events(work, "NoDevice")[0]


def test_gpu_device_with_a_moved_reservation_gets_no_new_pod(ready, rights, plugin, until):
    work = ready.namespace
    with Scheduler(rights):
        work.create(half("one"))
        until(lambda: visible(work), what="it is bound")
        plugin.nodes["gpu-0"].reverse()
        delete_reservation(plugin)
        until(lambda: events(work, "DeviceUnreserved"), what="it is told")
        work.create(half("two"))
        work.create(pod("whole", 1, project="vision"))
        until(
            lambda: all(sentence(work.pod(name)) for name in ("two", "whole")),
            what="others wait",
        )
        assert set(visible(work)) == {"one"}
        work.delete("one")
        until(lambda: "two" in visible(work) and work.node_of("whole"), what="they are bound")


def test_agent_report_older_than_the_reservation_is_ignored(
    ready, rights, plugin, until, eventually
):
    work = ready.namespace
    plugin.annotates = False
    with Scheduler(rights) as scheduler:
        work.create(half("one"))
        until(lambda: plugin.has, what="a device is reserved")
        plugin.report(scheduler, age=60)
        cycles = len(scheduler.cycles)
        eventually(lambda: len(scheduler.cycles) > cycles, what="it looks")
        assert visible(work) == {}
        plugin.report(scheduler)
        until(lambda: visible(work), what="it is bound")

    (reservation,) = plugin.reservations()
    assert notes(reservation)["run.ai/reserve_for_gpu_index"] == visible(work)["one"]


def test_newest_agent_report_overrides_older_ones_unless_the_clock_was_set_back(
    ready, rights, plugin
):
    passed = 0.0

    def now() -> float:
        return time.time() + passed

    with Scheduler(rights, clock=now) as scheduler:

        def report_device(uuid: str, *, age: float) -> set[str]:
            """Have an agent report the node's device; return the device that is known then."""
            devices = (Device(0, uuid, "Fake", 16_000, simulated=False),)
            scheduler.call(
                scheduler.cluster.note_holders("gpu-0", NodeReport(now() - age, {}, devices))
            )
            listed_devices = scheduler.call(scheduler.cluster.devices())["gpu-0"]
            return {device.uuid for device in listed_devices} & {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}

        assert report_device("GPU-0", age=60) == {"GPU-0"}
        assert report_device("GPU-1", age=0) == {"GPU-1"}
        assert report_device("GPU-2", age=60) == {"GPU-1"}, "it is older"
        passed = -120.0
        assert report_device("GPU-3", age=60) == {"GPU-3"}, (
            "it is newer, by a clock that is right now"
        )


def test_mig_device_is_not_shared(ready, rights, plugin, until):
    work = ready.namespace
    plugin.nodes["gpu-0"] = ["MIG-a", "MIG-b"]
    plugin.annotates = False
    with Scheduler(rights) as scheduler:
        work.create(half("one"))
        until(lambda: plugin.has, what="a device is reserved")
        plugin.report(scheduler)
        until(lambda: events(work, "NoDevice"), what="it is told")

    assert (
        "it was given MIG-a, and whole single devices alone are shared"
        in events(work, "NoDevice")[0]
    )
    assert visible(work) == {}


def test_broken_gpu_device_gets_no_new_pod_and_pods_that_use_it_get_an_event(
    ready, rights, plugin, until
):
    work = ready.namespace
    with Scheduler(rights) as scheduler:
        work.create(half("one"))
        until(lambda: visible(work), what="it is bound")
        broken = visible(work)["one"]
        scheduler.call(scheduler.cluster.note_faults("gpu-0", {broken: "XID 79"}))
        work.create(half("two"))
        until(lambda: "two" in visible(work), what="the next is bound")
        broken_device = Device(0, broken, "Fake", 16_000, simulated=False)
        report = NodeReport(time.time(), {}, (broken_device,))
        scheduler.call(scheduler.cluster.note_holders("gpu-0", report))
        listed_devices = scheduler.call(scheduler.cluster.devices())["gpu-0"]
        messages = until(lambda: events(work, "DeviceBroken"), what="it is told")

    assert visible(work)["two"] != broken
    assert {device.uuid: device.fault for device in listed_devices}[broken] == "XID 79"
    assert messages == [f"its GPU {broken} is broken: XID 79"]
