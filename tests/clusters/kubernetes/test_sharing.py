"""Parts of GPUs: sharing pods see the same device, and no other pod gets it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from clusters.kubernetes.sharing_world import half, notes, sentence, visible
from control_plane.device_plugin import DevicePlugin
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes


def test_two_half_gpu_pods_share_a_device_and_a_third_goes_to_the_next_device(
    ready, rights, plugin, until
):
    work = ready.namespace
    for name in ("one", "two", "three"):
        work.create(half(name))

    with Scheduler(rights) as scheduler:
        until(lambda: len(visible(work)) == 3, what="all three are bound")

    assert sorted(Counter(visible(work).values()).values()) == [1, 2]
    assert len(plugin.reservations()) == 2
    assert scheduler.refused == []
    one = work.pod("one")
    assert json.loads(notes(one)["runai/devices"]) == {visible(work)["one"]: 500}
    (variable,) = one["spec"]["containers"][0]["env"]
    field = variable["valueFrom"]["fieldRef"]["fieldPath"]
    assert (variable["name"], field) == (
        "NVIDIA_VISIBLE_DEVICES",
        "metadata.annotations['runai/visible-devices']",
    )


def test_gpu_memory_is_the_agents_report_on_a_node_without_the_label(lab, rights, eventually):
    work = lab.namespace
    lab.node("bare", gpus=2)
    lab.project("vision", quota=2)
    plugin = DevicePlugin(lab.plane, {"bare": ["GPU-a", "GPU-b"]})
    plugin.annotates = False
    plugin.memory_mib = 15_900
    work.create(half("half"))
    annotations = {"gpu-memory": "5300"}
    work.create(pod("memory", 0, project="vision", annotations=annotations))

    with Scheduler(rights) as scheduler:

        def waits() -> str:
            plugin.sync_pods()
            return sentence(work.pod("memory"))

        def are_bound() -> bool:
            plugin.sync_pods()
            plugin.report(scheduler)
            return len(visible(work)) == 2

        eventually(waits, what="before an agent has said so it fits nowhere")
        eventually(are_bound, what="both are bound")

    limits = {name: notes(work.pod(name)) for name in ("half", "memory")}
    assert limits["half"]["runai/gpu-memory-limits-mib"] == "7950"
    assert limits["memory"]["runai/gpu-memory-limits-mib"] == "5300"
    assert limits["half"]["runai/gpu-devices-mib"] == "15900"

    with Scheduler(rights):  # the successor, before any agent has reported to it
        work.create(half("next", "0.1"))
        eventually(
            lambda: (plugin.sync_pods(), len(visible(work)) == 3)[1], what="the next is bound"
        )
    assert notes(work.pod("next"))["runai/gpu-memory-limits-mib"] == "1590"


def test_pod_may_have_fractions_of_several_devices(ready, rights, plugin, until):
    work = ready.namespace
    annotations = {"gpu-fraction": "0.4", "gpu-fraction-num-devices": "2"}
    work.create(pod("both", 0, project="vision", annotations=annotations))

    with Scheduler(rights):
        until(lambda: visible(work), what="it is bound")

    assert sorted(visible(work)["both"].split(",")) == ["GPU-a", "GPU-b"]
    memory = {name: text for name, text in notes(work.pod("both")).items() if "mib" in name}
    assert memory == {
        "runai/gpu-memory-limit-mib": "6400",
        "runai/gpu-memory-limits-mib": "6400,6400",
        "runai/gpu-devices-mib": "16000,16000",
        "runai/gpu-context-mib": "500",
    }
    assert json.loads(notes(work.pod("both"))["runai/devices"]) == {"GPU-a": 400, "GPU-b": 400}


def test_gang_of_gpu_fraction_pods_is_bound_together(ready, rights, plugin, until):
    work = ready.namespace
    gang = job(
        "gang", 0, workers=3, gang=True, project="vision", annotations={"gpu-fraction": "0.6"}
    )
    work.create(gang)
    ready.node("gpu-1", gpus=2)
    plugin.nodes["gpu-1"] = ["GPU-c", "GPU-d"]
    plugin.nodes.pop("gpu-0")

    with Scheduler(rights):
        until(plugin.reservations, what="devices are reserved")
        assert visible(work) == {}
        plugin.nodes["gpu-0"] = ["GPU-a", "GPU-b"]
        until(lambda: len(visible(work)) == 3, what="all of it is bound")

    assert len(set(visible(work).values())) == 3


def test_restarted_scheduler_knows_gpu_shares_and_device_reservations(
    ready, rights, plugin, until, eventually
):
    work = ready.namespace
    for name, fraction in (("one", "0.5"), ("two", "0.3"), ("three", "0.9")):
        work.create(half(name, fraction))
    with Scheduler(rights):
        until(lambda: len(visible(work)) == 3, what="all three are bound")
    before = {p["metadata"]["uid"] for p in plugin.reservations()}

    with Scheduler(rights):
        work.create(half("small", "0.2"))
        work.create(half("large", "0.3"))
        until(lambda: "small" in visible(work), what="what fits beside the others is bound")
        eventually(lambda: sentence(work.pod("large")), what="what does not fit waits")

    assert visible(work)["small"] == visible(work)["one"] == visible(work)["two"]
    assert {p["metadata"]["uid"] for p in plugin.reservations()} == before
    assert work.node_of("large") == ""


def test_ended_sharing_pod_releases_its_device_and_stays_listed(ready, rights, plugin, until):
    work = ready.namespace
    work.create(half("one"))

    with Scheduler(rights) as scheduler:
        until(lambda: len(visible(work)) == 1, what="it is bound")
        work.finish("one")
        until(lambda: not plugin.reservations(), what="the reservation is gone")
        (record,) = scheduler.call(scheduler.cluster.workloads())

    assert notes(work.pod("one"))["runai/devices"]
    assert (record.state.value, record.workers[0].devices) == ("ended", ())
