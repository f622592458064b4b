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
def test_cluster_index_with_applied_changes_decides_like_its_snapshot(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    index = ClusterIndex(replace(snapshot, workloads=()))
    all_names = [workload.name for workload in snapshot.workloads]
    subsets = st.sets(st.sampled_from(all_names)) if all_names else st.just(set[str]())
    present: dict[str, object] = {}
    for time in range(data.draw(st.integers(1, 4), label="cycles")):
        names = data.draw(subsets, label="present")
        index.apply(
            SnapshotChanges(
                now=time,
                removed=tuple(name for name in present if name not in names),
                # Some workloads are new, and some replace themselves.
                workloads=tuple(w for w in snapshot.workloads if w.name in names),
            )
        )
        present = dict.fromkeys(names)

        assert index.snapshot().now == time
        assert {w.name for w in index.snapshot().workloads} == names
        assert decide(index) == decide(index.snapshot())
        assert decide(index) == decide(index.snapshot()), "a cycle leaves nothing behind"


@given(st.lists(snapshots(), min_size=2, max_size=3))
def test_cluster_index_with_changes_between_snapshots_matches_the_next_snapshot(
    successive: list[Snapshot],
) -> None:
    index = ClusterIndex(successive[0])
    previous = successive[0]
    for current in [*successive, successive[-1]]:
        index.apply(changes_between(previous, current))
        previous = current

        assert index.snapshot() == replace(current, workloads=index.snapshot().workloads)
        assert _by_name(index.snapshot()) == _by_name(current)
        assert decide(index) == decide(current)


def test_changes_between_equal_snapshots_contain_only_the_time() -> None:
    cluster_snapshot = snapshot("1x4", [project("a", 4)], [job("a-1"), job("a-2")])
    later_copy = replace(
        cluster_snapshot, now=5, workloads=tuple(map(replace, cluster_snapshot.workloads))
    )

    assert changes_between(cluster_snapshot, later_copy) == SnapshotChanges(now=5)


def test_cluster_index_applies_changed_nodes_projects_and_policy() -> None:
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


def test_cluster_index_accepts_the_first_workload_of_a_parent_project() -> None:
    projects = [project("lab", 2), project("a", 1, parent="lab")]
    index = ClusterIndex(snapshot("1x2", projects, [job("a-1")]))
    decide(index)

    index.apply(SnapshotChanges(workloads=(job("own", 1, "lab"),)))

    assert decide(index) == decide(index.snapshot())
    assert [d.workload for d in decide(index).decisions] == ["a-1", "own"]


def test_first_workload_of_a_leaf_project_does_not_rebuild_the_planning_state() -> None:
    index = ClusterIndex(
        snapshot("1x4", [project("a", 2), project("b", 2)], [job("a-1", project="a")])
    )
    before = index.state()
    index.apply(SnapshotChanges(workloads=(job("b-1", project="b"),)))

    assert index.state() is before, "the index keeps its state"


def test_cluster_index_rejects_removal_of_an_unknown_workload() -> None:
    with pytest.raises(KeyError, match="unknown"):
        ClusterIndex(snapshot("1x1", [])).apply(SnapshotChanges(removed=("unknown",)))


def _by_name(snapshot: Snapshot) -> dict[str, object]:
    return {workload.name: workload for workload in snapshot.workloads}


@pytest.fixture
def cyclic_garbage() -> Iterator[Callable[[], set[str]]]:
    """Return a function for the type names of objects that only the garbage collector frees."""
    gc.collect()
    gc.disable()

    def collected_types() -> set[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        type_names = {type(dead).__name__ for dead in gc.garbage}
        gc.garbage.clear()
        return type_names

    yield collected_types
    gc.enable()


def _decide_once(snapshot: Snapshot) -> None:
    decide(snapshot)


def _apply_changes(snapshot: Snapshot) -> None:
    index = ClusterIndex(snapshot)
    for now in range(3):
        index.apply(SnapshotChanges(now=now, workloads=tuple(map(replace, snapshot.workloads))))
        decide(index)
    index.apply(SnapshotChanges(removed=tuple(workload.name for workload in snapshot.workloads)))
    decide(index)


def _add_node(snapshot: Snapshot) -> None:
    index = ClusterIndex(snapshot)
    decide(index)
    index.apply(SnapshotChanges(nodes=(*snapshot.nodes, replace(snapshot.nodes[0], name="added"))))
    decide(index)


def _forecast(snapshot: Snapshot) -> None:
    forecast(snapshot, decide(snapshot))


def _explain(snapshot: Snapshot) -> None:
    plan = decide(snapshot)
    (waiting_name,) = [d.workload for d in plan.decisions if d.kind == "wait"]
    assert explain(snapshot, plan, waiting_name) is not None


@pytest.mark.parametrize(
    "use_snapshot",
    [
        pytest.param(_decide_once, id="decision"),
        pytest.param(_apply_changes, id="changed and removed workloads"),
        pytest.param(_add_node, id="added node"),
        pytest.param(_forecast, id="forecast"),
        pytest.param(_explain, id="explanation"),
    ],
)
def test_removed_workloads_are_freed_without_the_garbage_collector(
    use_snapshot: Callable[[Snapshot], None], cyclic_garbage: Callable[[], set[str]]
) -> None:
    runs = job("runs", gpus=2, expected_runtime=100)
    cluster_snapshot = snapshot(
        "1x4", [project("a", 4)], [runs, job("starts", gpus=2), job("waits", gpus=4)]
    )

    use_snapshot(cluster_snapshot)

    assert not cyclic_garbage() & {
        "PlannedWorkload",
        "PlannedWorker",
        "PodSet",
        "EquivalenceClass",
        "Workload",
        "Snapshot",
    }
