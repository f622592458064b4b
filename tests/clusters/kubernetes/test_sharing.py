"""Parts of GPUs: sharing pods see the same device, and no other pod gets it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from clusters.kubernetes.gpu_sharing import annotations_of, devices_of, fraction_pod, wait_message
from control_plane.device_plugin import DevicePlugin
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes


def test_two_half_gpu_pods_share_a_device_and_a_third_goes_to_the_next_device(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    for name in ("one", "two", "three"):
        work.create(fraction_pod(name, "0.5"))

    with Scheduler(kubeconfig) as scheduler:
        until(lambda: len(devices_of(work)) == 3, what="all three are bound")

    assert sorted(Counter(devices_of(work).values()).values()) == [1, 2]
    assert len(plugin.reservations()) == 2
    assert scheduler.refused == []
    one = work.pod("one")
    assert json.loads(annotations_of(one)["runai/devices"]) == {devices_of(work)["one"]: 500}
    (variable,) = one["spec"]["containers"][0]["env"]
    field = variable["valueFrom"]["fieldRef"]["fieldPath"]
    assert (variable["name"], field) == (
        "NVIDIA_VISIBLE_DEVICES",
        "metadata.annotations['runai/visible-devices']",
    )


def test_gpu_memory_is_the_agents_report_on_a_node_without_the_label(lab, kubeconfig, eventually):
    work = lab.namespace
    lab.node("bare", gpus=2)
    lab.project("vision", quota=2)
    plugin = DevicePlugin(lab.plane, {"bare": ["GPU-a", "GPU-b"]})
    plugin.annotates = False
    plugin.memory_mib = 15_900
    work.create(fraction_pod("half", "0.5"))
    annotations = {"gpu-memory": "5300"}
    work.create(pod("memory", 0, project="vision", annotations=annotations))

    with Scheduler(kubeconfig) as scheduler:

        def waits() -> str:
            plugin.sync_pods()
            return wait_message(work.pod("memory"))

        def are_bound() -> bool:
            plugin.sync_pods()
            plugin.report(scheduler)
            return len(devices_of(work)) == 2

        eventually(waits, what="it waits for the agent's report")
        eventually(are_bound, what="both are bound")

    limits = {name: annotations_of(work.pod(name)) for name in ("half", "memory")}
    assert limits["half"]["runai/gpu-memory-limits-mib"] == "7950"  # half of 15900
    assert limits["memory"]["runai/gpu-memory-limits-mib"] == "5300"
    assert limits["half"]["runai/gpu-devices-mib"] == "15900"

    with Scheduler(kubeconfig):  # the successor, before any agent has reported to it
        work.create(fraction_pod("next", "0.1"))
        eventually(
            lambda: (plugin.sync_pods(), len(devices_of(work)) == 3)[1], what="the next is bound"
        )
    assert annotations_of(work.pod("next"))["runai/gpu-memory-limits-mib"] == "1590"


def test_pod_may_have_fractions_of_several_devices(two_gpus, kubeconfig, plugin, until):
    work = two_gpus.namespace
    annotations = {"gpu-fraction": "0.4", "gpu-fraction-num-devices": "2"}
    work.create(pod("both", 0, project="vision", annotations=annotations))

    with Scheduler(kubeconfig):
        until(lambda: devices_of(work), what="the pod is bound")

    assert sorted(devices_of(work)["both"].split(",")) == ["GPU-a", "GPU-b"]
    annotations = annotations_of(work.pod("both"))
    memory = {name: text for name, text in annotations.items() if "mib" in name}
    assert memory == {
        "runai/gpu-memory-limit-mib": "6400",  # 0.4 of 16000
        "runai/gpu-memory-limits-mib": "6400,6400",
        "runai/gpu-devices-mib": "16000,16000",
        "runai/gpu-context-mib": "500",
    }
    assert json.loads(annotations["runai/devices"]) == {"GPU-a": 400, "GPU-b": 400}


def test_gang_of_gpu_fraction_pods_is_bound_together(two_gpus, kubeconfig, plugin, until):
    work = two_gpus.namespace
    gang = job(
        "gang", 0, workers=3, gang=True, project="vision", annotations={"gpu-fraction": "0.6"}
    )
    work.create(gang)
    two_gpus.node("gpu-1", gpus=2)
    plugin.nodes["gpu-1"] = ["GPU-c", "GPU-d"]
    plugin.nodes.pop("gpu-0")

    with Scheduler(kubeconfig):
        until(plugin.reservations, what="devices are reserved")
        assert devices_of(work) == {}
        plugin.nodes["gpu-0"] = ["GPU-a", "GPU-b"]
        until(lambda: len(devices_of(work)) == 3, what="the gang is bound")

    assert len(set(devices_of(work).values())) == 3


def test_restarted_scheduler_knows_gpu_shares_and_device_reservations(
    two_gpus, kubeconfig, plugin, until, eventually
):
    work = two_gpus.namespace
    for name, fraction in (("one", "0.5"), ("two", "0.3"), ("three", "0.9")):
        work.create(fraction_pod(name, fraction))
    with Scheduler(kubeconfig):
        until(lambda: len(devices_of(work)) == 3, what="all three are bound")
    before = {p["metadata"]["uid"] for p in plugin.reservations()}

    with Scheduler(kubeconfig):
        work.create(fraction_pod("small", "0.2"))
        work.create(fraction_pod("large", "0.3"))
        until(lambda: "small" in devices_of(work), what="the small pod is bound")
        eventually(lambda: wait_message(work.pod("large")), what="the large pod waits")

    assert devices_of(work)["small"] == devices_of(work)["one"] == devices_of(work)["two"]
    assert {p["metadata"]["uid"] for p in plugin.reservations()} == before
    assert work.node_of("large") == ""


def test_ended_sharing_pod_releases_its_device_and_stays_listed(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    work.create(fraction_pod("one", "0.5"))

    with Scheduler(kubeconfig) as scheduler:
        until(lambda: len(devices_of(work)) == 1, what="the pod is bound")
        work.finish("one")
        until(lambda: not plugin.reservations(), what="the reservation is gone")
        (record,) = scheduler.call(scheduler.cluster.workloads())

    assert annotations_of(work.pod("one"))["runai/devices"]
    assert (record.state.value, record.workers[0].devices) == ("ended", ())
