"""Devices that a node has and does not offer: no plan counts on them, and pods on them go on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.kubernetes.worlds import a_job, a_machine, a_pod
from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode, Pod
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import read_part
from runai.hub_service.clusters.kubernetes.objects.pod_groups import Grouping
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import DeviceIds
from runai.hub_service.clusters.kubernetes.snapshot.lost_devices import LostDevices
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import (
    SnapshotBuilder,
    SnapshotInput,
)
from runai.hub_service.scheduler.cycle import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import SHIPPED, Plan, Project, Snapshot, Wait

LENDS, OWNS = Project(name="b", quota=MilliGpu(0)), Project(name="a", quota=MilliGpu(4000))


def gpu_node(offered: int, *, has: int = 4, name: str = "gpu-1", **fields: Any) -> KubeNode:
    return a_machine(name, offered, gpu_capacity=has, **fields)


class Played:
    """Cycles of a cluster in which each stop and each start happens at once."""

    def __init__(self, running: int, *, node: str = "gpu-1") -> None:
        self.jobs = [a_job(f"b{i}", created=float(i)) for i in range(running)]
        self.pods: list[Pod] = [
            a_pod(f"b{i}-0", of=job, project="b", node=node, bound=10.0 + i)
            for i, job in enumerate(self.jobs)
        ]
        self.names: dict[str, str] = {}
        self.stopped: list[str] = []
        self.now = 50_000.0
        self._builder, self._ids = SnapshotBuilder(), DeviceIds()

    def claim(self, name: str = "claim", **fields: Any) -> None:
        job = a_job(name, created=900.0)
        self.jobs.append(job)
        self.pods.append(a_pod(f"{name}-0", of=job, project="a", created=900.0, **fields))

    def observe(self, *machines: KubeNode, **fields: Any) -> Snapshot:
        found = Grouping().groups(self.pods, {j.uid: j for j in self.jobs}, {}, "default")
        self.names = {pod.uid: pod.called for group in found for pod in group.pods}
        world = SnapshotInput(
            machines=machines,
            pods=self.pods,
            groups=found,
            projects=[OWNS, LENDS],
            devices=self._ids.numbers(self.pods),
            **fields,
        )
        return replace(self._builder.snapshot(self.now, world), policy=SHIPPED)

    def cycle(self, *machines: KubeNode, **fields: Any) -> Plan:
        plan = decide(self.observe(*machines, **fields))
        self.now += 10
        gone = {d.worker for d in plan.decisions if d.kind in ("stop", "move")}
        self.stopped += sorted(gone)
        self.pods = [pod for pod in self.pods if self.names[pod.uid] not in gone]
        starts = {d.worker: d for d in plan.decisions if d.kind == "start"}
        for index, pod in enumerate(self.pods):
            if (start := starts.get(self.names[pod.uid])) is not None:
                self.pods[index] = replace(pod, node=start.node, bound=self.now)
                numbers = tuple(share.device for share in start.devices)
                self._ids.assign(pod.uid, start.node, numbers)
        return plan

    def bound(self, name: str = "claim") -> bool:
        return any(pod.node for pod in self.pods if pod.name == f"{name}-0")


def waits(plan: Plan) -> Mapping[str, str]:
    return {d.workload: d.reason.text for d in plan.decisions if isinstance(d, Wait)}


def test_node_that_offers_nothing_costs_no_job_until_its_plugin_is_back():
    world = Played(running=4)
    world.cycle(gpu_node(4))
    world.claim()

    plans = [world.cycle(gpu_node(0)) for _ in range(4)]
    assert world.stopped == []
    (text,) = waits(plans[-1]).values()
    for _ in range(3):
        world.cycle(gpu_node(4))

    assert text.startswith("node gpu-1 offers 0 of 4 GPUs since ")
    assert text.endswith(" (device plugin or driver)")
    assert (len(world.stopped), world.bound()) == (1, True)


@pytest.mark.parametrize("offered", [3, 2, 1])
def test_claim_on_a_node_with_lost_devices_stops_one_job(offered):
    """The plan before the stop and the one after it agree on which devices are lost."""
    world = Played(running=4)
    world.cycle(gpu_node(4))
    world.claim()

    for _ in range(4):
        world.cycle(gpu_node(offered))

    assert (len(world.stopped), world.bound()) == (1, True)


def test_node_that_offers_nothing_lets_claims_stop_jobs_elsewhere_only():
    world = Played(running=4)
    for index in range(4):
        world.jobs.append(a_job(f"e{index}", created=500.0 + index))
        world.pods.append(
            a_pod(f"e{index}-0", of=world.jobs[-1], project="b", node="gpu-2", bound=600.0)
        )
    both = gpu_node(4), gpu_node(4, name="gpu-2")
    world.cycle(*both)
    world.claim()

    for _ in range(3):
        world.cycle(gpu_node(0), both[1])

    assert [name.partition(".")[2][0] for name in world.stopped] == ["e"]
    assert world.bound()


@pytest.mark.parametrize(
    "share",
    [
        pytest.param({"gpus": 0, "part": read_part({"gpu-fraction": "0.5"}, 0)[0]}, id="a part"),
        pytest.param({"gpus": 2}, id="two GPUs"),
        pytest.param({"kind": "build", "owner": None, "index": None}, id="a notebook"),
    ],
)
def test_claim_of_any_size_stops_nothing_on_a_node_without_offer(share):
    world = Played(running=4)
    world.cycle(gpu_node(4))
    world.claim(**share)

    plans = [world.cycle(gpu_node(0)) for _ in range(3)]

    assert (world.stopped, world.bound()) == ([], False)
    assert all("offers 0 of 4 GPUs" in text for text in waits(plans[-1]).values())


def test_capacity_that_falls_to_zero_too_changes_nothing():
    """A kubelet gives a plugin up after five minutes, and pods may end meanwhile."""
    world = Played(running=4)
    world.cycle(gpu_node(4))
    world.claim()
    world.cycle(gpu_node(0))
    before = waits(world.cycle(gpu_node(0, has=0)))

    world.pods = [pod for pod in world.pods if pod.project == "a"]
    after = waits(world.cycle(gpu_node(0, has=0)))

    assert (world.stopped, world.bound()) == ([], False)
    assert before == after
    world.cycle(gpu_node(4))
    assert world.bound()


def test_faulty_device_is_the_lost_one():
    world = Played(running=4)
    world.cycle(gpu_node(4))

    lost = world.observe(gpu_node(3), broken={"gpu-1": [2]}).nodes[0].broken_devices

    assert lost == (2,)


def test_rejected_pod_shows_that_the_free_device_is_the_lost_one():
    world = Played(running=4)
    world.cycle(gpu_node(4))
    world.cycle(gpu_node(3))
    world.pods.pop()  # one ends by itself

    guess = world.observe(gpu_node(3)).nodes[0].broken_devices
    closed = world.observe(gpu_node(3), closed={"gpu-1"}).nodes[0].broken_devices
    after = world.observe(gpu_node(3)).nodes[0].broken_devices

    assert (guess, closed, after) == ((0,), (0, 1, 2, 3), (3,))


def test_more_pods_than_devices_for_a_moment_are_no_loss():
    """Another scheduler has bound a pod to the same GPU; one of the two will be rejected."""
    lost = LostDevices()
    machine = gpu_node(4)

    lost.on(machine, {0, 1, 2, 3, 4}, (), 1.0, rejects=False)
    found = lost.on(machine, {1, 2, 3, 4}, (), 2.0, rejects=False)

    assert (found.lost, found.loss) == ({0}, "")


@pytest.mark.parametrize(
    ("later", "since"),
    [
        pytest.param(3_600, time.strftime("%H:%M", time.localtime(0)), id="an hour"),
        pytest.param(90_000, time.strftime("%d %b %H:%M", time.localtime(0)), id="a day"),
    ],
)
def test_sentence_names_the_time_at_which_the_loss_began(later, since):
    lost = LostDevices()
    lost.on(gpu_node(3), set(), (), 0.0, rejects=False)

    found = lost.on(gpu_node(3), set(), (), float(later), rejects=False)

    assert found.loss == f"node gpu-1 offers 3 of 4 GPUs since {since} (device plugin or driver)"


numbers = st.sets(st.integers(0, 5))
seen = st.tuples(st.integers(0, 5), st.integers(0, 5), numbers, numbers, st.booleans())


@given(st.lists(seen, max_size=6))
def test_no_more_devices_are_usable_than_are_offered(history):
    lost = LostDevices()
    for at, (has, offered, held, faulty, rejects) in enumerate(history):
        found = lost.on(gpu_node(offered, has=has), held, faulty, float(at), rejects=rejects)

        assert found.lost | held <= set(range(found.total))
        assert found.total - len(found.lost) <= offered
        assert offered < max(has, 1) or not found.loss
        if offered >= max(has, len(held)):
            assert not found.lost & held


@given(
    running=st.integers(0, 4),
    claims=st.integers(0, 3),
    healthy=st.integers(1, 4),
    offers=st.lists(st.sampled_from(["none", "healthy", "all"]), min_size=1, max_size=6),
)
def test_no_more_jobs_stop_than_claims_come(
    running: int, claims: int, healthy: int, offers: Sequence[str]
):
    """However often the plugin restarts, each stop gives its device to the claim behind it."""
    world = Played(running=running)
    world.cycle(gpu_node(4))
    for index in range(claims):
        world.claim(f"claim{index}")

    for offer in offers:
        offered = {"none": 0, "healthy": healthy, "all": 4}[offer]
        before = len(world.stopped)
        world.cycle(gpu_node(offered))
        assert offered or len(world.stopped) == before

    assert len(world.stopped) <= claims
