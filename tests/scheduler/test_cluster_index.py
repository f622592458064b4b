"""An index and its snapshot give equal plans after any sequence of changes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import cluster, job, project, snapshot
from runai.hub_service.scheduler import (
    ClusterIndex,
    Policy,
    Snapshot,
    SnapshotChanges,
    changes_between,
    decide,
    explain,
    forecast,
)
from strategies import snapshots


@given(snapshots(), st.data())
def test_an_index_decides_like_the_snapshot_it_has_become(
    world: Snapshot, data: st.DataObject
) -> None:
    index = ClusterIndex(replace(world, workloads=()))
    everybody = [workload.name for workload in world.workloads]
    subsets = st.sets(st.sampled_from(everybody)) if everybody else st.just(set[str]())
    here: dict[str, object] = {}
    for time in range(data.draw(st.integers(1, 4), label="cycles")):
        names = data.draw(subsets, label="there")
        index.apply(
            SnapshotChanges(
                now=time,
                removed=tuple(name for name in here if name not in names),
                # Some workloads are new, and some replace themselves.
                workloads=tuple(w for w in world.workloads if w.name in names),
            )
        )
        here = dict.fromkeys(names)

        assert index.snapshot().now == time
        assert {w.name for w in index.snapshot().workloads} == names
        assert decide(index) == decide(index.snapshot())
        assert decide(index) == decide(index.snapshot()), "a cycle leaves nothing behind"


@given(st.lists(snapshots(), min_size=2, max_size=3))
def test_an_index_follows_from_one_snapshot_to_the_next(worlds: list[Snapshot]) -> None:
    index = ClusterIndex(worlds[0])
    before = worlds[0]
    for world in [*worlds, worlds[-1]]:
        index.apply(changes_between(before, world))
        before = world

        assert index.snapshot() == replace(world, workloads=index.snapshot().workloads)
        assert _by_name(index.snapshot()) == _by_name(world)
        assert decide(index) == decide(world)


def test_equal_parts_of_two_snapshots_are_no_changes() -> None:
    world = snapshot("1x4", [project("a", 4)], [job("a-1"), job("a-2")])
    copy = replace(world, now=5, workloads=tuple(map(replace, world.workloads)))

    assert changes_between(world, copy) == SnapshotChanges(now=5)


def test_nodes_projects_and_policy_may_change() -> None:
    index = ClusterIndex(snapshot("1x2", [project("a", 1)], [job("a-1"), job("a-2"), job("a-3")]))
    assert len([d for d in decide(index).decisions if d.kind == "start"]) == 2

    index.apply(
        SnapshotChanges(
            nodes=cluster("1x4"),
            projects=(project("a", 1, limit=3),),
            policy=Policy(explain="none"),
        )
    )

    assert [d.kind for d in decide(index).decisions] == ["start"] * 3
    index.apply(SnapshotChanges(projects=(project("a", 1, limit=1),)))
    assert [d.kind for d in decide(index).decisions] == ["start"]
    assert [d.kind for d in decide(index, Policy(phases=())).decisions] == ["wait"] * 3


def test_a_project_with_children_may_get_a_first_workload_of_its_own() -> None:
    tree = [project("lab", 2), project("a", 1, parent="lab")]
    index = ClusterIndex(snapshot("1x2", tree, [job("a-1")]))
    decide(index)

    index.apply(SnapshotChanges(workloads=(job("own", 1, "lab"),)))

    assert decide(index) == decide(index.snapshot())
    assert [d.workload for d in decide(index).decisions] == ["a-1", "own"]


def test_a_project_without_children_gets_its_first_workload_like_any_other() -> None:
    index = ClusterIndex(
        snapshot("1x4", [project("a", 2), project("b", 2)], [job("a-1", project="a")])
    )
    before = index.state()
    index.apply(SnapshotChanges(workloads=(job("b-1", project="b"),)))

    assert index.state() is before, "nothing else was looked up anew"


def test_index_rejects_removal_of_an_unknown_workload() -> None:
    with pytest.raises(KeyError, match="nobody"):
        ClusterIndex(snapshot("1x1", [])).apply(SnapshotChanges(removed=("nobody",)))


def _by_name(world: Snapshot) -> dict[str, object]:
    return {workload.name: workload for workload in world.workloads}


@pytest.fixture
def dead_circles() -> Iterator[Callable[[], set[str]]]:
    """Return a function for the type names of objects that only the garbage collector frees."""
    gc.collect()
    gc.disable()

    def found() -> set[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        kinds = {type(dead).__name__ for dead in gc.garbage}
        gc.garbage.clear()
        return kinds

    yield found
    gc.enable()


def _decide_once(world: Snapshot) -> None:
    decide(world)


def _follow(world: Snapshot) -> None:
    index = ClusterIndex(world)
    for now in range(3):
        index.apply(SnapshotChanges(now=now, workloads=tuple(map(replace, world.workloads))))
        decide(index)
    index.apply(SnapshotChanges(removed=tuple(workload.name for workload in world.workloads)))
    decide(index)


def _move(world: Snapshot) -> None:
    index = ClusterIndex(world)
    decide(index)
    index.apply(SnapshotChanges(nodes=(*world.nodes, replace(world.nodes[0], name="another"))))
    decide(index)


def _forecast(world: Snapshot) -> None:
    forecast(world, decide(world))


def _explain(world: Snapshot) -> None:
    plan = decide(world)
    (waits,) = [d.workload for d in plan.decisions if d.kind == "wait"]
    assert explain(world, plan, waits) is not None


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(_decide_once, id="a decision"),
        pytest.param(_follow, id="workloads that change and go"),
        pytest.param(_move, id="another cluster"),
        pytest.param(_forecast, id="a forecast"),
        pytest.param(_explain, id="an explanation"),
    ],
)
def test_workloads_go_by_themselves(
    act: Callable[[Snapshot], None], dead_circles: Callable[[], set[str]]
) -> None:
    runs = job("runs", gpus=2, expected_runtime=100)
    world = snapshot("1x4", [project("a", 4)], [runs, job("starts", gpus=2), job("waits", gpus=4)])

    act(world)

    assert not dead_circles() & {
        "PlannedWorkload",
        "PlannedWorker",
        "PodSet",
        "EquivalenceClass",
        "Workload",
        "Snapshot",
    }
