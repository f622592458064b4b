"""P5: a broken device gets no new worker, and the workers on it stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from builders import cluster, job, project, session, snapshot
from runai.hub_service.scheduler import decide
from runai.hub_service.scheduler.model.snapshot import (
    SHIPPED,
    Move,
    Node,
    Policy,
    Reserve,
    Resize,
    Snapshot,
    Start,
    Stop,
    Unreserve,
    Wait,
    WorkerState,
)
from runai.hub_service.scheduler.placement.quota_check import oversubscribed
from strategies import impossible, snapshots


def nodes_with_broken(shape: str, *devices: int) -> list[Node]:
    return [replace(node, broken_devices=devices) for node in cluster(shape)]


def devices_in_use(snapshot: Snapshot) -> set[tuple[str | None, int]]:
    """Return the devices that running, stopping or reserved workers hold."""
    return {
        (worker.node, device)
        for workload in snapshot.workloads
        for worker in workload.workers
        if worker.state is not WorkerState.PENDING
        for device in worker.devices
    }


@st.composite
def snapshots_with_broken_devices(
    draw: st.DrawFn, base_snapshots: st.SearchStrategy[Snapshot]
) -> Snapshot:
    """Draw a world where some devices are broken, idle or in use."""
    snapshot = draw(base_snapshots)
    nodes = []
    for node in snapshot.nodes:
        numbers = st.sets(st.integers(0, node.devices - 1)) if node.devices else st.just(set())
        broken = tuple(sorted(draw(numbers)))
        returning = tuple(device for device in broken if draw(st.booleans()))
        nodes.append(replace(node, broken_devices=broken, returning_devices=returning))
    return replace(snapshot, nodes=tuple(nodes))


@given(snapshots_with_broken_devices(snapshots() | impossible()))
def test_plan_places_no_worker_on_a_broken_device(snapshot: Snapshot) -> None:
    broken = {(node.name, device) for node in snapshot.nodes for device in node.broken_devices}
    returning = {
        (node.name, device) for node in snapshot.nodes for device in node.returning_devices
    }
    released_reservations = {
        d.worker for d in decide(snapshot).decisions if isinstance(d, Unreserve | Start)
    }
    placements = {
        (worker.name, worker.node, worker.devices)
        for workload in snapshot.workloads
        for worker in workload.workers
    }

    for decision in decide(snapshot).decisions:
        if isinstance(decision, Start | Move | Resize):
            assert not {(decision.node, s.device) for s in decision.devices} & broken
        if isinstance(decision, Reserve):
            devices = tuple(s.device for s in decision.devices)
            is_unchanged = (decision.worker, decision.node, devices) in placements
            assert is_unchanged or not {(decision.node, d) for d in devices} & broken
    for workload in snapshot.workloads:
        for worker in workload.workers:
            if worker.state is WorkerState.RESERVED and worker.name not in released_reservations:
                assert not {(worker.node, device) for device in worker.devices} & (
                    broken - returning
                )


@given(snapshots(), st.data())
def test_idle_broken_device_is_planned_like_a_missing_device(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    in_use = devices_in_use(snapshot)
    smaller_nodes, broken_nodes = [], []
    for node in snapshot.nodes:
        last = max((d for name, d in in_use if name == node.name and d is not None), default=-1)
        broken_count = data.draw(st.integers(0, node.devices - last - 1))
        healthy = node.devices - broken_count
        smaller_nodes.append(replace(node, devices=healthy))
        broken_nodes.append(replace(node, broken_devices=tuple(range(healthy, node.devices))))
    assume(any(node.broken_devices for node in broken_nodes))

    assert decide(replace(snapshot, nodes=tuple(broken_nodes))) == decide(
        replace(snapshot, nodes=tuple(smaller_nodes))
    )


@pytest.mark.parametrize(
    ("worker", "device"),
    [
        pytest.param(job("j", 1), 1, id="whole device"),
        pytest.param(job("j", 0.5), 1, id="fraction"),
        pytest.param(session("s", 1), 1, id="session"),
    ],
)
def test_worker_starts_on_the_healthy_device_beside_a_broken_one(worker, device) -> None:
    cluster_snapshot = snapshot(nodes_with_broken("1x2", 0), [project("a", 2)], [worker])

    (start,) = decide(cluster_snapshot).decisions
    assert isinstance(start, Start)
    assert [s.device for s in start.devices] == [device]


def test_reclaim_stops_the_job_on_a_healthy_device_not_on_a_broken_one() -> None:
    cluster_snapshot = snapshot(
        nodes_with_broken("1x2", 0),
        [project("a", 1), project("b", 1)],
        [job("there", 0.5, on="n1:0"), job("other", 1, on="n1:1"), job("waits", 0.5, "b")],
    )

    plan = decide(cluster_snapshot)

    stops = {d.workload for d in plan.decisions if isinstance(d, Stop)}
    # b is owed its quota: it gets a healthy device, since the broken one is of no use to it.
    assert stops == {"other"}


CLAIMS = {
    "a job within its quota": job("claim", 1, "b"),
    "a fraction of a GPU": job("claim", 0.5, "b"),
    "all GPUs": job("claim", 2, "b"),
    "a job of higher priority": job("claim", 1, priority=90),
    "a notebook": session("claim", 1),
    "a notebook with more CPU": session("claim", 1, cpu_milli=4_000),
    "an elastic job": job("claim", 1, "b", workers=2, min_workers=1),
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
@pytest.mark.parametrize("policy", [Policy(), SHIPPED], ids=["default", "shipped"])
def test_claimant_stops_no_job_on_a_node_with_only_broken_devices(claim, policy) -> None:
    nodes = [replace(node, cpu_milli=4_000) for node in nodes_with_broken("1x2", 0, 1)]
    existing = [
        job("old", 1, on="n1:0", cpu_milli=2_000),
        job("new", 1, on="n1:1", cpu_milli=2_000),
    ]

    cluster_snapshot = snapshot(nodes, [project("a", 1), project("b", 2)], [*existing, claim])

    plan = decide(replace(cluster_snapshot, policy=policy))

    assert {d.kind for d in plan.decisions} == {"wait"}


RESERVED = {
    "a job": job("claim", 1, "b", on="n1:0", state="reserved"),
    "a job of two GPUs": job("claim", 2, "b", on="n1:0,1", state="reserved"),
    "a fraction of a GPU": job("claim", 0.5, "b", on="n1:1", state="reserved"),
    "some memory": job("claim", 0, "b", gpu_memory_mib=100, on="n1:1", state="reserved"),
    "a gang": job("claim", 1, "b", workers=2, on="n1:0 n1:1", state="reserved"),
    "a notebook": session("claim", 1, "b", on="n1:0", state="reserved"),
}


@pytest.mark.parametrize("claim", RESERVED.values(), ids=RESERVED)
@pytest.mark.parametrize(
    ("returning", "stops"),
    [pytest.param((0, 1), False, id="device may return"), pytest.param((), True, id="device lost")],
)
def test_claimant_stops_a_second_job_only_if_its_reserved_device_broke_for_good(
    claim, returning, stops
):
    broken_node, healthy_node = cluster("2x2", memory_mib=1_000)
    broken_node = replace(broken_node, broken_devices=(0, 1), returning_devices=returning)
    existing = [job("old", 1, on="n2:0"), job("new", 1, on="n2:1")]
    projects = [project("a", 0), project("b", 2)]

    decisions = decide(
        snapshot([broken_node, healthy_node], projects, [*existing, claim])
    ).decisions

    assert any(isinstance(d, Stop) for d in decisions) is stops
    if not stops:
        (wait,) = decisions
        assert isinstance(wait, Wait)
        assert wait.reason.text == "its place on n1 is reserved; waiting for its GPUs to work again"


def test_reserved_broken_device_that_may_return_is_allocated_to_no_later_workload() -> None:
    nodes = [replace(node, returning_devices=(0, 1)) for node in nodes_with_broken("1x2", 0, 1)]
    claim = job("claim", 1, "b", on="n1:0", state="reserved")

    plan = decide(snapshot(nodes, [project("a", 2), project("b", 2)], [claim, job("late", 1)]))

    assert {(d.kind, d.workload) for d in plan.decisions} == {("wait", "claim"), ("wait", "late")}


def test_second_reservation_of_a_broken_device_that_may_return_is_dropped() -> None:
    nodes = [replace(node, returning_devices=(0,)) for node in nodes_with_broken("1x1", 0)]
    claims = [job(name, 1, "b", on="n1:0", state="reserved") for name in ("one", "two")]

    plan = decide(snapshot(nodes, [project("b", 2)], claims))

    assert [d.workload for d in plan.decisions if isinstance(d, Unreserve)] == ["two"]


def test_node_with_a_broken_device_is_too_small_for_a_job_of_all_its_gpus() -> None:
    cluster_snapshot = snapshot(nodes_with_broken("1x8", 3), [project("a", 8)], [job("j", 8)])

    (wait,) = decide(cluster_snapshot).decisions
    assert isinstance(wait, Wait)
    assert wait.reason.text.startswith("no node has 8 GPUs; the largest has 7")


def test_oversubscribed_quotas_are_compared_with_healthy_devices_only() -> None:
    cluster_snapshot = snapshot(nodes_with_broken("1x4", 0, 1), [project("a", 3)])

    message = "the quotas add up to 3 GPUs, but the cluster has 2 GPUs"
    assert oversubscribed(cluster_snapshot)[0] == message


def test_allocated_broken_devices_count_as_capacity_for_fair_shares() -> None:
    projects = [project("a", 0, weight=1), project("b", 0, weight=1)]
    cluster_snapshot = snapshot(
        nodes_with_broken("1x4", 0, 1), projects, [job("j", 1, on="n1:0"), job("k", 4, "b")]
    )

    shares = decide(cluster_snapshot).projects

    # Two devices are healthy, and one of the two broken ones is allocated.
    assert shares["a"].fair_share + shares["b"].fair_share == 3000
