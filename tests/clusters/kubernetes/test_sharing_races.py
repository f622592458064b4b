"""Races between two API calls of GPU sharing.

No device is given twice and no pod is lost. `plugin.sync_pods()` asserts each time that no device
is oversubscribed. `test_faults_between_calls` covers calls that fail.
"""

from __future__ import annotations

import time

import pytest

from clusters.kubernetes.gpu_sharing import (
    annotations_of,
    delete_reservation,
    devices_of,
    events,
    fraction_pod,
    wait_message,
)
from control_plane.faults import FaultyServer
from control_plane.objects import pod
from control_plane.scheduling import Scheduler
from runai.hub_service.model.cluster import NodeReport
from runai.hub_service.model.device import Device

pytestmark = pytest.mark.kubernetes


def both_share_one_device(two_gpus, plugin) -> bool:
    devices_by_pod = devices_of(two_gpus.namespace)
    return (
        len(devices_by_pod) == 2
        and len(set(devices_by_pod.values())) == 1
        and len(plugin.reservations()) == 1
    )


def test_restarted_scheduler_deletes_a_gpu_reservation_without_sharing_pods(
    two_gpus, kubeconfig, plugin, until
):
    two_gpus.namespace.create(fraction_pod("one", "0.5"))
    plugin.annotates = False
    with Scheduler(kubeconfig):
        until(plugin.reservations, what="a device is reserved")
    two_gpus.namespace.delete("one")

    with Scheduler(kubeconfig):
        until(lambda: not plugin.reservations(), what="the reservation is gone")


def test_gpu_sharing_pod_waits_until_its_reserved_device_is_known(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    plugin.annotates = False

    with Scheduler(kubeconfig):
        work.create(fraction_pod("one", "0.5"))
        until(plugin.reservations, what="a device is reserved")
        work.create(fraction_pod("two", "0.5"))
        message = until(lambda: wait_message(work.pod("two")), what="the second has a message")
        assert devices_of(work) == {}
        plugin.annotates = True
        until(lambda: both_share_one_device(two_gpus, plugin), what="both share one device")

    assert message == "its place on gpu-0 is kept until its devices there are ready"


def test_gpu_reservation_is_not_deleted_while_a_sharing_pod_is_being_bound(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig):
        work.create(fraction_pod("one", "0.5"))
        until(lambda: devices_of(work), what="the first is bound")
        (before,) = plugin.reservations()
        release_call = server.hold("POST", "/pods/two/binding")
        work.create(fraction_pod("two", "0.5"))
        until(
            lambda: any("/pods/two/binding" in path for _method, path in server.requests),
            what="the second is being bound",
        )
        work.delete("one")
        until(lambda: len(work.pods()) == 1, what="the first is gone")
        release_call()
        until(lambda: "two" in devices_of(work), what="the second is bound")

        work.create(fraction_pod("three", "0.5"))
        until(lambda: "three" in devices_of(work), what="the third is bound")

    (after,) = plugin.reservations()
    assert before["metadata"]["uid"] == after["metadata"]["uid"]
    assert len(set(devices_of(work).values())) == 1


def test_gpu_reservation_is_not_deleted_while_a_sharing_pod_is_stopping(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    with Scheduler(kubeconfig):
        work.create(fraction_pod("one", "0.5"))
        until(lambda: devices_of(work), what="the pod is bound")
        work.annotate("one", {"test/stops-in": "1s"})
        work.delete("one")
        work.create(fraction_pod("two", "0.9"))
        until(lambda: "two" in devices_of(work), what="the next is bound")
        # The first has half of its device until it is gone, so they were never on one together.
        until(lambda: len(work.pods()) == 1, what="the first is gone")


def test_gpu_sharing_pod_is_bound_elsewhere_if_a_node_rejects_its_reservation(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    plugin.pods_to_reject = 1  # the kubelet rejects the next pod
    two_gpus.node("gpu-1", gpus=1)
    plugin.nodes["gpu-1"] = ["GPU-c"]

    with Scheduler(kubeconfig):
        work.create(fraction_pod("one", "0.5"))
        until(lambda: devices_of(work), what="the pod is bound elsewhere")
        # An Event is sent after the change itself, when the API server has time for it.
        (message,) = until(lambda: events(work, "NoDevice"), what="an Event is sent")

    assert "UnexpectedAdmissionError: Allocate failed" in message
    (reservation,) = plugin.reservations()
    assert reservation["spec"]["nodeName"] == work.node_of("one")
    assert reservation["spec"]["nodeName"] not in message


def test_gpu_reservation_without_a_reported_device_is_abandoned_after_a_minute(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    plugin.annotates = False
    ahead_s = 0.0

    with Scheduler(kubeconfig, clock=lambda: time.time() + ahead_s):
        work.create(fraction_pod("one", "0.5"))
        until(plugin.reservations, what="a device is reserved")
        ahead_s = 61.0  # the scheduler waits a minute
        work.create(fraction_pod("two", "0.5"))  # the cause of a further cycle
        until(lambda: events(work, "NoDevice"), what="an Event is sent")

    assert "nobody said which device it has within 60 s" in events(work, "NoDevice")[0]


def test_gpu_device_with_a_moved_reservation_gets_no_new_pod(two_gpus, kubeconfig, plugin, until):
    work = two_gpus.namespace
    with Scheduler(kubeconfig):
        work.create(fraction_pod("one", "0.5"))
        until(lambda: devices_of(work), what="the pod is bound")
        plugin.nodes["gpu-0"].reverse()
        delete_reservation(plugin)
        until(lambda: events(work, "DeviceUnreserved"), what="an Event is sent")
        work.create(fraction_pod("two", "0.5"))
        work.create(pod("whole", 1, project="vision"))
        until(
            lambda: all(wait_message(work.pod(name)) for name in ("two", "whole")),
            what="both other pods wait",
        )
        assert set(devices_of(work)) == {"one"}
        work.delete("one")
        until(lambda: "two" in devices_of(work) and work.node_of("whole"), what="they are bound")


def test_agent_report_older_than_the_reservation_is_ignored(
    two_gpus, kubeconfig, plugin, until, eventually
):
    work = two_gpus.namespace
    plugin.annotates = False
    with Scheduler(kubeconfig) as scheduler:
        work.create(fraction_pod("one", "0.5"))
        until(lambda: plugin.has, what="a device is reserved")
        plugin.report(scheduler, age=60)
        cycles = len(scheduler.cycles)
        eventually(lambda: len(scheduler.cycles) > cycles, what="the scheduler decides again")
        assert devices_of(work) == {}
        plugin.report(scheduler)
        until(lambda: devices_of(work), what="the pod is bound")

    (reservation,) = plugin.reservations()
    assert annotations_of(reservation)["run.ai/reserve_for_gpu_index"] == devices_of(work)["one"]


def test_newest_agent_report_overrides_older_ones_unless_the_clock_was_set_back(
    two_gpus, kubeconfig, plugin
):
    ahead_s = 0.0

    def now() -> float:
        return time.time() + ahead_s

    with Scheduler(kubeconfig, clock=now) as scheduler:

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
        assert report_device("GPU-2", age=60) == {"GPU-1"}, "an older report is ignored"
        ahead_s = -120.0
        assert report_device("GPU-3", age=60) == {"GPU-3"}, "a clock that was set back is right"


def test_mig_device_is_not_shared(two_gpus, kubeconfig, plugin, until):
    work = two_gpus.namespace
    plugin.nodes["gpu-0"] = ["MIG-a", "MIG-b"]
    plugin.annotates = False
    with Scheduler(kubeconfig) as scheduler:
        work.create(fraction_pod("one", "0.5"))
        until(lambda: plugin.has, what="a device is reserved")
        plugin.report(scheduler)
        until(lambda: events(work, "NoDevice"), what="an Event is sent")

    assert (
        "it was given MIG-a, and whole single devices alone are shared"
        in events(work, "NoDevice")[0]
    )
    assert devices_of(work) == {}


def test_broken_gpu_device_gets_no_new_pod_and_pods_that_use_it_get_an_event(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    with Scheduler(kubeconfig) as scheduler:
        work.create(fraction_pod("one", "0.5"))
        until(lambda: devices_of(work), what="the pod is bound")
        broken = devices_of(work)["one"]
        scheduler.call(scheduler.cluster.note_faults("gpu-0", {broken: "XID 79"}))
        work.create(fraction_pod("two", "0.5"))
        until(lambda: "two" in devices_of(work), what="the next is bound")
        broken_device = Device(0, broken, "Fake", 16_000, simulated=False)
        report = NodeReport(time.time(), {}, (broken_device,))
        scheduler.call(scheduler.cluster.note_holders("gpu-0", report))
        listed_devices = scheduler.call(scheduler.cluster.devices())["gpu-0"]
        messages = until(lambda: events(work, "DeviceBroken"), what="an Event is sent")

    assert devices_of(work)["two"] != broken
    assert {device.uuid: device.fault for device in listed_devices}[broken] == "XID 79"
    assert messages == [f"its GPU {broken} is broken: XID 79"]
