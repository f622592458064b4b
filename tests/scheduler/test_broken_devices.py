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


def broken(shape: str, *devices: int) -> list[Node]:
    return [replace(node, broken_devices=devices) for node in cluster(shape)]


def held(world: Snapshot) -> set[tuple[str | None, int]]:
    """Return the devices that running, stopping or reserved workers hold."""
    return {
        (worker.node, device)
        for workload in world.workloads
        for worker in workload.workers
        if worker.state is not WorkerState.PENDING
        for device in worker.devices
    }


@st.composite
def with_broken(draw: st.DrawFn, worlds: st.SearchStrategy[Snapshot]) -> Snapshot:
    """Draw a world where some devices are broken, idle or in use."""
    world = draw(worlds)
    nodes = []
    for node in world.nodes:
        numbers = st.sets(st.integers(0, node.devices - 1)) if node.devices else st.just(set())
        out = tuple(sorted(draw(numbers)))
        back = tuple(device for device in out if draw(st.booleans()))
        nodes.append(replace(node, broken_devices=out, returning_devices=back))
    return replace(world, nodes=tuple(nodes))


@given(with_broken(snapshots() | impossible()))
def test_nothing_new_is_placed_on_a_broken_device(world: Snapshot) -> None:
    out = {(node.name, device) for node in world.nodes for device in node.broken_devices}
    back = {(node.name, device) for node in world.nodes for device in node.returning_devices}
    gives_up = {d.worker for d in decide(world).decisions if isinstance(d, Unreserve | Start)}
    there = {
        (worker.name, worker.node, worker.devices)
        for workload in world.workloads
        for worker in workload.workers
    }

    for decision in decide(world).decisions:
        if isinstance(decision, Start | Move | Resize):
            assert not {(decision.node, s.device) for s in decision.devices} & out
        if isinstance(decision, Reserve):
            devices = tuple(s.device for s in decision.devices)
            kept = (decision.worker, decision.node, devices) in there
            assert kept or not {(decision.node, d) for d in devices} & out
    for workload in world.workloads:
        for worker in workload.workers:
            if worker.state is WorkerState.RESERVED and worker.name not in gives_up:
                assert not {(worker.node, device) for device in worker.devices} & (out - back)


@given(snapshots(), st.data())
def test_idle_broken_device_is_planned_like_a_missing_device(
    world: Snapshot, data: st.DataObject
) -> None:
    taken = held(world)
    kept, lost = [], []
    for node in world.nodes:
        last = max((d for name, d in taken if name == node.name and d is not None), default=-1)
        number = data.draw(st.integers(0, node.devices - last - 1))
        healthy = node.devices - number
        kept.append(replace(node, devices=healthy))
        lost.append(replace(node, broken_devices=tuple(range(healthy, node.devices))))
    assume(any(node.broken_devices for node in lost))

    assert decide(replace(world, nodes=tuple(lost))) == decide(replace(world, nodes=tuple(kept)))


@pytest.mark.parametrize(
    ("worker", "device"),
    [
        pytest.param(job("j", 1), 1, id="a whole device"),
        pytest.param(job("j", 0.5), 1, id="a fraction"),
        pytest.param(session("s", 1), 1, id="a session"),
    ],
)
def test_the_healthy_device_is_taken(worker, device) -> None:
    world = snapshot(broken("1x2", 0), [project("a", 2)], [worker])

    (start,) = decide(world).decisions
    assert isinstance(start, Start)
    assert [s.device for s in start.devices] == [device]


def test_reclaim_stops_the_job_on_a_healthy_device_not_on_a_broken_one() -> None:
    world = snapshot(
        broken("1x2", 0),
        [project("a", 1), project("b", 1)],
        [job("there", 0.5, on="n1:0"), job("other", 1, on="n1:1"), job("waits", 0.5, "b")],
    )

    plan = decide(world)

    stops = {d.workload for d in plan.decisions if isinstance(d, Stop)}
    # b is owed its quota: it gets a healthy device, since the broken one is of no use to it.
    assert stops == {"other"}


CLAIMS = {
    "a job within its quota": job("claim", 1, "b"),
    "a part of a GPU": job("claim", 0.5, "b"),
    "all GPUs": job("claim", 2, "b"),
    "a job that goes first": job("claim", 1, priority=90),
    "a notebook": session("claim", 1),
    "a notebook with more CPU": session("claim", 1, cpu_milli=4_000),
    "an elastic job": job("claim", 1, "b", workers=2, min_workers=1),
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
@pytest.mark.parametrize("policy", [Policy(), SHIPPED], ids=["default", "shipped"])
def test_claim_stops_nothing_on_a_node_whose_devices_are_all_broken(claim, policy) -> None:
    nodes = [replace(node, cpu_milli=4_000) for node in broken("1x2", 0, 1)]
    there = [job("old", 1, on="n1:0", cpu_milli=2_000), job("new", 1, on="n1:1", cpu_milli=2_000)]

    world = snapshot(nodes, [project("a", 1), project("b", 2)], [*there, claim])

    plan = decide(replace(world, policy=policy))

    assert {d.kind for d in plan.decisions} == {"wait"}


RESERVED = {
    "a job": job("claim", 1, "b", on="n1:0", state="reserved"),
    "a job of two GPUs": job("claim", 2, "b", on="n1:0,1", state="reserved"),
    "a part of a GPU": job("claim", 0.5, "b", on="n1:1", state="reserved"),
    "some memory": job("claim", 0, "b", gpu_memory_mib=100, on="n1:1", state="reserved"),
    "a gang": job("claim", 1, "b", workers=2, on="n1:0 n1:1", state="reserved"),
    "a notebook": session("claim", 1, "b", on="n1:0", state="reserved"),
}


@pytest.mark.parametrize("claim", RESERVED.values(), ids=RESERVED)
@pytest.mark.parametrize(
    ("returning", "stops"),
    [pytest.param((0, 1), False, id="for a moment"), pytest.param((), True, id="for good")],
)
def test_claim_stops_a_second_job_only_if_its_device_broke_for_good(claim, returning, stops):
    lost, other = cluster("2x2", memory_mib=1_000)
    lost = replace(lost, broken_devices=(0, 1), returning_devices=returning)
    there = [job("old", 1, on="n2:0"), job("new", 1, on="n2:1")]
    projects = [project("a", 0), project("b", 2)]

    decisions = decide(snapshot([lost, other], projects, [*there, claim])).decisions

    assert any(isinstance(d, Stop) for d in decisions) is stops
    if not stops:
        (wait,) = decisions
        assert isinstance(wait, Wait)
        assert wait.reason.text == "its place on n1 is reserved; waiting for its GPUs to work again"


def test_no_other_workload_gets_a_device_that_may_return() -> None:
    nodes = [replace(node, returning_devices=(0, 1)) for node in broken("1x2", 0, 1)]
    claim = job("claim", 1, "b", on="n1:0", state="reserved")

    plan = decide(snapshot(nodes, [project("a", 2), project("b", 2)], [claim, job("late", 1)]))

    assert {(d.kind, d.workload) for d in plan.decisions} == {("wait", "claim"), ("wait", "late")}


def test_two_reservations_of_a_device_that_may_return_do_not_both_stand() -> None:
    nodes = [replace(node, returning_devices=(0,)) for node in broken("1x1", 0)]
    claims = [job(name, 1, "b", on="n1:0", state="reserved") for name in ("one", "two")]

    plan = decide(snapshot(nodes, [project("b", 2)], claims))

    assert [d.workload for d in plan.decisions if isinstance(d, Unreserve)] == ["two"]


def test_a_node_of_which_a_device_is_broken_is_too_small_for_a_job_of_all() -> None:
    world = snapshot(broken("1x8", 3), [project("a", 8)], [job("j", 8)])

    (wait,) = decide(world).decisions
    assert isinstance(wait, Wait)
    assert wait.reason.text.startswith("no node has 8 GPUs; the largest has 7")


def test_quotas_promise_more_than_the_healthy_devices() -> None:
    world = snapshot(broken("1x4", 0, 1), [project("a", 3)])

    assert oversubscribed(world)[0] == "the quotas add up to 3 GPUs, but the cluster has 2 GPUs"


def test_allocated_broken_devices_count_as_capacity_for_fair_shares() -> None:
    projects = [project("a", 0, weight=1), project("b", 0, weight=1)]
    alone = snapshot(broken("1x4", 0, 1), projects, [job("j", 1, on="n1:0"), job("k", 4, "b")])

    shares = decide(alone).projects

    assert shares["a"].fair_share + shares["b"].fair_share == 3000
