"""Devices that a node has and does not offer: no plan counts on them, and pods on them go on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusters.kubernetes.parsed_objects import a_job, a_node, a_pod
from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode, Pod
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import read_part
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGrouping
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import DeviceIds
from runai.hub_service.clusters.kubernetes.snapshot.lost_devices import LostDevices
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import (
    NominatedPlacement,
    SnapshotBuilder,
    SnapshotInput,
)
from runai.hub_service.scheduler.cycle import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import (
    SHIPPED,
    Plan,
    Project,
    Reserve,
    Snapshot,
    Start,
    Wait,
)

BORROWER, OWNER = Project(name="b", quota=MilliGpu(0)), Project(name="a", quota=MilliGpu(4000))


def gpu_node(offered: int, *, capacity: int = 4, name: str = "gpu-1", **fields: Any) -> KubeNode:
    return a_node(name, offered, gpu_capacity=capacity, **fields)


TWO_NODES = gpu_node(4), gpu_node(4, name="gpu-2")


class PlayedCluster:
    """Cycles of a cluster in which each stop and each start happens at once."""

    def __init__(self, running: int, *, on_second: int = 0) -> None:
        self.jobs: list[Job] = []
        self.pods: list[Pod] = []
        for name, node, count in (("e", "gpu-2", on_second), ("b", "gpu-1", running)):
            for i in range(count):
                at = float(len(self.jobs))
                job = a_job(f"{name}{i}", created=at)
                self.jobs.append(job)
                self.pods.append(a_pod(f"{name}{i}-0", of=job, project="b", node=node, bound=at))
        self.pods_by_uid: dict[str, Pod] = {}
        self.nominations: dict[str, NominatedPlacement] = {}
        self.stopped: list[str] = []
        self.now = 50_000.0
        self._builder, self._ids = SnapshotBuilder(), DeviceIds()

    def claim(self, name: str = "claim", **fields: Any) -> None:
        job = a_job(name, created=900.0)
        self.jobs.append(job)
        self.pods.append(a_pod(f"{name}-0", of=job, project="a", created=900.0, **fields))

    def observe(self, *nodes: KubeNode, **fields: Any) -> Snapshot:
        found = PodGrouping().groups(self.pods, {j.uid: j for j in self.jobs}, {}, "default")
        self.pods_by_uid = {pod.uid: pod for group in found for pod in group.pods}
        snapshot_input = SnapshotInput(
            nodes=nodes,
            pods=self.pods,
            groups=found,
            projects=[OWNER, BORROWER],
            devices=self._ids.update(self.pods),
            nominations=self.nominations,
            **fields,
        )
        return replace(self._builder.snapshot(self.now, snapshot_input), policy=SHIPPED)

    def cycle(self, *nodes: KubeNode, **fields: Any) -> Plan:
        plan = decide(self.observe(*nodes, **fields))
        self.now += 10
        stopped_workers = {d.worker for d in plan.decisions if d.kind in ("stop", "move")}
        self.stopped += sorted(stopped_workers)
        self.pods = [
            pod for pod in self.pods if self.pods_by_uid[pod.uid].called not in stopped_workers
        ]
        placements = {
            d.worker: d for d in plan.decisions if d.kind in ("start", "reserve", "unreserve")
        }
        for index, pod in enumerate(self.pods):
            place = self.pods_by_uid[pod.uid].place
            if (new := placements.get(self.pods_by_uid[pod.uid].called)) is None:
                continue
            self.nominations.pop(place, None)
            if isinstance(new, Reserve):
                numbers = tuple(share.device for share in new.devices)
                self.nominations[place] = NominatedPlacement(new.node, numbers)
            elif isinstance(new, Start):
                self.pods[index] = replace(pod, node=new.node, bound=self.now)
                numbers = tuple(share.device for share in new.devices)
                self._ids.assign(pod.uid, new.node, numbers)
        return plan

    def stopped_nodes(self) -> list[str]:
        """Return the node of each stopped job."""
        return [{"b": "gpu-1", "e": "gpu-2"}[name.partition(".")[2][0]] for name in self.stopped]

    def bound(self, name: str = "claim") -> bool:
        return any(pod.node for pod in self.pods if pod.name == f"{name}-0")


def waits(plan: Plan) -> Mapping[str, str]:
    return {d.workload: d.reason.text for d in plan.decisions if isinstance(d, Wait)}


def test_node_that_offers_no_gpu_stops_no_job_until_its_device_plugin_is_back():
    cluster = PlayedCluster(running=4)
    cluster.cycle(gpu_node(4))
    cluster.claim()

    plans = [cluster.cycle(gpu_node(0)) for _ in range(4)]
    assert cluster.stopped == []
    (text,) = waits(plans[-1]).values()
    for _ in range(3):
        cluster.cycle(gpu_node(4))

    assert text.startswith("node gpu-1 offers 0 of 4 GPUs since ")
    assert text.endswith(" (device plugin or driver)")
    assert (len(cluster.stopped), cluster.bound()) == (1, True)


@pytest.mark.parametrize("offered", [3, 2, 1])
def test_claimant_on_a_node_with_lost_devices_stops_one_job(offered):
    """The plan before the stop and the one after it agree on which devices are lost."""
    cluster = PlayedCluster(running=4)
    cluster.cycle(gpu_node(4))
    cluster.claim()

    for _ in range(4):
        cluster.cycle(gpu_node(offered))

    assert (len(cluster.stopped), cluster.bound()) == (1, True)


def test_claimant_beside_a_node_that_offers_no_gpu_stops_jobs_on_other_nodes_only():
    cluster = PlayedCluster(running=4, on_second=4)
    cluster.cycle(*TWO_NODES)
    cluster.claim()

    for _ in range(3):
        cluster.cycle(gpu_node(0), TWO_NODES[1])

    assert cluster.stopped_nodes() == ["gpu-2"]
    assert cluster.bound()


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(
            {"gpus": 0, "device_request": read_part({"gpu-fraction": "0.5"}, 0)[0]}, id="half a GPU"
        ),
        pytest.param({"gpus": 2}, id="two GPUs"),
        pytest.param({"kind": "build", "owner": None, "index": None}, id="notebook"),
    ],
)
def test_claimant_of_any_gpu_share_stops_no_job_on_a_node_that_offers_no_gpu(share):
    cluster = PlayedCluster(running=4)
    cluster.cycle(gpu_node(4))
    cluster.claim(**share)

    plans = [cluster.cycle(gpu_node(0)) for _ in range(3)]

    assert (cluster.stopped, cluster.bound()) == ([], False)
    assert all("offers 0 of 4 GPUs" in text for text in waits(plans[-1]).values())


def test_claimant_waits_with_an_unchanged_reason_while_gpu_capacity_falls_to_zero():
    """A kubelet gives a plugin up after five minutes, and pods may end meanwhile."""
    cluster = PlayedCluster(running=4)
    cluster.cycle(gpu_node(4))
    cluster.claim()
    cluster.cycle(gpu_node(0))
    before = waits(cluster.cycle(gpu_node(0, capacity=0)))

    cluster.pods = [pod for pod in cluster.pods if pod.project == "a"]
    after = waits(cluster.cycle(gpu_node(0, capacity=0)))

    assert (cluster.stopped, cluster.bound()) == ([], False)
    assert before == after
    cluster.cycle(gpu_node(4))
    assert cluster.bound()


def test_device_reported_as_faulty_is_the_lost_device_of_its_node():
    cluster = PlayedCluster(running=4)
    cluster.cycle(gpu_node(4))

    lost = cluster.observe(gpu_node(3), broken={"gpu-1": [2]}).nodes[0].broken_devices

    assert lost == (2,)


def test_pod_rejection_identifies_the_free_device_as_the_lost_device():
    cluster = PlayedCluster(running=4)
    cluster.cycle(gpu_node(4))
    cluster.cycle(gpu_node(3))
    cluster.pods.pop()  # the pod on device 3 ends by itself

    guessed = cluster.observe(gpu_node(3)).nodes[0].broken_devices
    rejecting = cluster.observe(gpu_node(3), nodes_in_backoff={"gpu-1"}).nodes[0].broken_devices
    afterwards = cluster.observe(gpu_node(3)).nodes[0].broken_devices

    assert guessed == (0,)
    assert rejecting == (0, 1, 2, 3)
    assert afterwards == (3,)


def test_more_pods_than_devices_for_a_moment_report_no_device_loss():
    """Another scheduler has bound a pod to the same GPU; one of the two will be rejected."""
    lost = LostDevices()
    node = gpu_node(4)

    lost.update(node, {0, 1, 2, 3, 4}, (), 1.0, rejects=False)
    losses = lost.update(node, {1, 2, 3, 4}, (), 2.0, rejects=False)

    assert (losses.lost, losses.loss) == ({0}, "")


@pytest.mark.parametrize(
    ("seconds_later", "since"),
    [
        pytest.param(3_600, time.strftime("%H:%M", time.localtime(0)), id="an hour"),
        pytest.param(90_000, time.strftime("%d %b %H:%M", time.localtime(0)), id="a day"),
    ],
)
def test_device_loss_message_names_the_time_at_which_the_loss_began(seconds_later, since):
    lost = LostDevices()
    lost.update(gpu_node(3), set(), (), 0.0, rejects=False)

    losses = lost.update(gpu_node(3), set(), (), float(seconds_later), rejects=False)

    assert losses.loss == f"node gpu-1 offers 3 of 4 GPUs since {since} (device plugin or driver)"


def cluster_with_reservation() -> PlayedCluster:
    """Return two full nodes of which one has stopped a job for a claim."""
    cluster = PlayedCluster(running=4, on_second=4)
    cluster.cycle(*TWO_NODES)
    cluster.claim()
    cluster.cycle(*TWO_NODES)
    assert [p.node for p in cluster.nominations.values()] == ["gpu-1"]
    assert len(cluster.stopped) == 1
    return cluster


SHORT_LOSSES = {
    "device plugin restarts": (gpu_node(0), {}),
    "kubelet forgets its plugin": (gpu_node(0, capacity=0), {}),
    "node rejects pods": (gpu_node(4), {"nodes_in_backoff": {"gpu-1"}}),
}


@pytest.mark.parametrize(("node", "fields"), SHORT_LOSSES.values(), ids=SHORT_LOSSES)
def test_device_reservation_outlasts_a_short_loss_of_its_device(node, fields):
    cluster = cluster_with_reservation()

    plans = [cluster.cycle(node, TWO_NODES[1], **fields) for _ in range(5)]  # 10 s each
    stops_and_bound = len(cluster.stopped), cluster.bound()
    cluster.cycle(*TWO_NODES)

    assert stops_and_bound == (1, False)
    (text,) = waits(plans[-1]).values()
    assert text.startswith("its place on gpu-1 is reserved; ")
    assert node.gpus or "node gpu-1 offers 0 of " in text
    assert (len(cluster.stopped), cluster.bound()) == (1, True)


@pytest.mark.parametrize(("node", "fields"), SHORT_LOSSES.values(), ids=SHORT_LOSSES)
def test_claimant_stops_a_second_job_once_its_device_is_lost_for_a_minute(node, fields):
    cluster = cluster_with_reservation()

    for _ in range(8):  # cycles of 10 s each
        cluster.cycle(node, TWO_NODES[1], **fields)

    assert cluster.stopped_nodes() == ["gpu-1", "gpu-2"]
    assert cluster.bound()


def test_claimant_with_a_broken_reserved_device_stops_a_second_job_at_once():
    cluster = cluster_with_reservation()
    ((number,),) = [nomination.devices for nomination in cluster.nominations.values()]

    for _ in range(2):
        cluster.cycle(gpu_node(3), TWO_NODES[1], broken={"gpu-1": [number]})

    assert (len(cluster.stopped), cluster.bound()) == (2, True)


def test_claimant_that_is_rejected_on_its_reserved_device_stops_a_second_job():
    """The device that was freed for it is the lost one after all: this stop is needed."""
    cluster = PlayedCluster(running=4)
    cluster.cycle(gpu_node(4))
    cluster.claim()
    for node in (gpu_node(4), gpu_node(3)):
        cluster.cycle(node)
    assert (len(cluster.stopped), cluster.bound()) == (1, True)
    cluster.pods[-1] = replace(cluster.pods[-1], uid="uid-again", node="", bound=None)

    cluster.cycle(gpu_node(3), nodes_in_backoff={"gpu-1"})
    before = len(cluster.stopped)
    for _ in range(3):
        cluster.cycle(gpu_node(3))

    assert before == 1
    assert (len(cluster.stopped), cluster.bound()) == (2, True)


def test_claimant_takes_a_free_device_while_its_reserved_device_is_lost():
    cluster = cluster_with_reservation()
    cluster.pods = [pod for pod in cluster.pods if pod.name != "e0-0"]  # a job on gpu-2 ends

    cluster.cycle(gpu_node(0), TWO_NODES[1])

    assert (len(cluster.stopped), cluster.bound()) == (1, True)


numbers = st.sets(st.integers(0, 5))
node_states = st.tuples(
    st.integers(0, 5), st.integers(0, 5), numbers, numbers, numbers, st.booleans()
)


@given(st.lists(node_states, max_size=6))
def test_usable_devices_of_a_node_never_exceed_the_devices_it_offers(history):
    lost = LostDevices()
    for at, (capacity, offered, allocated, reserved, faulty, rejects) in enumerate(history):
        node, now, in_use = gpu_node(offered, capacity=capacity), 20.0 * at, allocated | reserved
        losses = lost.update(node, allocated, faulty, now, reserved=reserved, rejects=rejects)

        assert losses.lost | in_use <= set(range(losses.total))
        assert losses.total - len(losses.lost) <= (0 if rejects else offered)
        assert offered < max(capacity, 1) or not losses.loss
        assert losses.returning <= (losses.lost & reserved) - faulty
        if offered >= max(capacity, len(in_use)) and not rejects:
            assert not losses.lost & in_use


@given(
    running=st.integers(0, 4),
    claims=st.integers(0, 3),
    healthy=st.integers(1, 4),
    offers=st.lists(st.sampled_from(["none", "healthy", "all"]), min_size=1, max_size=6),
)
@example(running=4, claims=1, healthy=1, offers=["all", "healthy"])
def test_claimants_on_a_node_with_plugin_restarts_stop_at_most_one_job_each(
    running: int, claims: int, healthy: int, offers: Sequence[str]
):
    """However often the plugin restarts, each stop gives its device to the claim behind it."""
    cluster = PlayedCluster(running=running)
    cluster.cycle(gpu_node(4))
    for index in range(claims):
        cluster.claim(f"claim{index}")

    for offer in offers:
        offered = {"none": 0, "healthy": healthy, "all": 4}[offer]
        before = len(cluster.stopped)
        cluster.cycle(gpu_node(offered))
        assert offered or len(cluster.stopped) == before

    assert len(cluster.stopped) <= claims


offer = st.sampled_from(["none", "healthy", "all"])


@given(
    running=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    claims=st.integers(0, 3),
    healthy=st.integers(1, 4),
    offers=st.lists(st.tuples(offer, offer, st.booleans()), min_size=1, max_size=6),
)
def test_claimants_on_two_nodes_stop_at_most_one_job_each(
    running: tuple[int, int],
    claims: int,
    healthy: int,
    offers: Sequence[tuple[str, str, bool]],
):
    """However often plugins restart and the first node rejects pods, within a minute."""
    cluster = PlayedCluster(running=running[0], on_second=running[1])
    cluster.cycle(*TWO_NODES)
    for index in range(claims):
        cluster.claim(f"claim{index}")

    offered = {"none": 0, "healthy": healthy, "all": 4}
    for first, second, rejects in offers:
        nodes = gpu_node(offered[first]), gpu_node(offered[second], name="gpu-2")
        cluster.cycle(*nodes, nodes_in_backoff={"gpu-1"} if rejects else ())

    assert len(cluster.stopped) <= claims
