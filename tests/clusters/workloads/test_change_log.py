"""Readers that catch up from any version have the same rows as the index."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.clusters.workloads.change_log import ChangeLog
from runai.hub_service.clusters.workloads.workload_index import WorkloadIndex
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec, WorkloadState

NAMES = ("a", "b", "c", "d")


def new_row(name: str, position: int) -> WorkloadRecord:
    spec = WorkloadSpec("vision", name, "ana", "job", ("train",))
    return WorkloadRecord(spec, WorkloadState.QUEUED, 0.0, (), position=position)


def empty_index(max_removals: int) -> WorkloadIndex:
    index = WorkloadIndex(
        (), RetentionPolicy(), lambda spec, _now: new_row(spec.name, 0), lambda _spec: 1
    )
    index._log = ChangeLog(max_removals)
    return index


@given(
    actions=st.lists(st.tuples(st.sampled_from(["set", "delete"]), st.sampled_from(NAMES))),
    max_removals=st.integers(1, 4),
)
def test_reader_that_applies_changes_from_any_version_has_the_rows_of_the_index(
    actions, max_removals
):
    index = empty_index(max_removals)
    snapshots = [(0, dict(index))]
    removals: list[str] = []
    removal_counts = [0]
    for position, (action, name) in enumerate(actions):
        row = new_row(name, position)
        if action == "set":
            index[row.id] = row
        elif row.id in index:
            del index[row.id]
            removals.append(row.id)
        snapshots.append((index.changes(None).version, dict(index)))
        removal_counts.append(len(removals))

    for (version, rows), removal_count in zip(snapshots, removal_counts, strict=True):
        changes = index.changes(version)
        assert changes.is_all == (len(removals) - removal_count > max_removals)
        for workload in list(rows) if changes.is_all else changes.removed:
            rows.pop(workload, None)
        if not changes.is_all:
            assert set(changes.removed) == set(removals[removal_count:])
            assert all(rows.get(record.id) is not record for record in changes.changed)
        rows |= {record.id: record for record in changes.changed}
        assert list(rows.items()) == list(index.items())
        assert list(index.records()) == list(rows.values())
