"""Queues that are updated with each change equal queues that are built anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.api.services.platform import Platform
from runai.hub_service.api.views.workload_queues import RECENT, LastQueues, Queues
from runai.hub_service.clusters.workloads.change_log import ChangeLog
from runai.hub_service.model.changes import WorkloadChanges
from runai.hub_service.model.records import (
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare

ALLOCATED_WORKERS = (WorkerRecord("w-0", 0, "reserved", "here", (DeviceShare(0, MilliGpu(500)),)),)
records = st.builds(
    WorkloadRecord,
    st.builds(
        WorkloadSpec,
        project=st.sampled_from(["vision", "nlp"]),
        name=st.just("exp"),
        user=st.sampled_from(["ana", "mia"]),
        kind=st.just("job"),
    ),
    st.sampled_from(WorkloadState),
    submitted=st.just(0.0),
    workers=st.sampled_from([(), ALLOCATED_WORKERS]),
    position=st.none() | st.integers(1, 3),
)


def with_own_names(workloads: Sequence[WorkloadRecord]) -> list[WorkloadRecord]:
    return [
        replace(record, spec=replace(record.spec, name=f"exp-{number}"))
        for number, record in enumerate(workloads)
    ]


def queues_of(workloads: Sequence[WorkloadRecord]) -> Queues:
    last_queues = LastQueues()
    last_queues.apply(WorkloadChanges(0, workloads, is_all=True))
    return last_queues.queues


named_records = st.lists(records, max_size=12).map(with_own_names)


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | records), max_size=30), st.data())
def test_updated_workload_queues_equal_rebuilt_queues_after_each_change(
    steps: list[tuple[int, WorkloadRecord | None]], data: st.DataObject
) -> None:
    """Each step deletes a workload (None), submits it, or replaces its record."""
    last_queues, log, rows = LastQueues(), ChangeLog(max_removals=3), dict[str, WorkloadRecord]()
    for number, record in steps:
        user = "ana" if number % 2 else "mia"
        if record is not None:
            spec = replace(record.spec, name=f"exp-{number}", project="vision", user=user)
            rows[spec.id] = replace(record, spec=spec)
            log.add_change(spec.id)
        elif rows.pop(f"vision/exp-{number}", None) is not None:
            log.add_removal(f"vision/exp-{number}")
        if data.draw(st.booleans()):
            continue  # the queues are read later
        before = last_queues.queues
        owned_before = {user: before.owned(user) for user in ("ana", "mia")}

        last_queues.apply(log.since(last_queues.version, rows, list(rows).index))

        assert last_queues.queues == queues_of(list(rows.values()))
        assert owned_before == {user: before.owned(user) for user in owned_before}
        for user in ("ana", "mia", "nobody"):
            assert list(map(id, last_queues.queues.owned(user))) == [
                id(r) for r in rows.values() if r.spec.user == user
            ]


def test_workload_queues_without_a_change_are_the_same_object() -> None:
    last_queues = LastQueues()
    last_queues.apply(WorkloadChanges(7, (), is_all=True))
    before = last_queues.queues

    last_queues.apply(WorkloadChanges(7, ()))

    assert last_queues.queues is before


@given(named_records)
def test_waiting_workloads_are_queued_by_project_and_user(workloads: list[WorkloadRecord]) -> None:
    built = queues_of(workloads)

    waiting = [r for r in workloads if r.state.value in {"queued", "paused", "retrying"}]
    for queues, key_of in (
        (built.of_project, lambda record: record.spec.project),
        (built.of_user, lambda record: record.spec.user),
    ):
        assert sorted(map(id, waiting)) == sorted(id(r) for queue in queues.values() for r in queue)
        assert all(key_of(record) == name for name, queue in queues.items() for record in queue)
        assert all(queues.values())
    assert [*built.present] == [record for record in workloads if record not in waiting]
    assert [*built.holding.records] == [record for record in workloads if record.workers]
    for queue in built.of_project.values():
        places = [r.position or 9 for r in queue]
        assert places == sorted(places)


@given(records.filter(lambda record: record.state.finished), st.integers(0, 2 * RECENT))
def test_workload_queues_limit_the_number_of_finished_workloads(
    record: WorkloadRecord, many: int
) -> None:
    workloads = with_own_names([record] * many)

    assert len(queues_of(workloads).present) == min(many, RECENT)


@given(named_records, st.integers(0, 6))
def test_first_records_of_a_workload_queue_equal_the_start_of_the_sorted_queue(
    workloads: list[WorkloadRecord], many: int
) -> None:
    partial, complete = queues_of(workloads), queues_of(workloads)

    for queues, all_ in (
        (partial.of_project, complete.of_project),
        (partial.of_user, complete.of_user),
    ):
        for name, queue in all_.items():
            assert list(map(id, queues.first(name, many))) == list(map(id, queue[:many]))
        assert list(queues.first("nobody", many)) == []
    counts = {key: len(records) for key, records in partial.of_user_and_project.items()}
    assert sum(counts.values()) == sum(map(len, complete.of_user.values()))


async def test_queues_have_the_version_that_was_read_though_an_older_one_was_applied() -> None:
    spec = WorkloadSpec("vision", "exp", "ana", "job", command=("true",))
    log, rows, queues = ChangeLog(), dict[WorkloadId, WorkloadRecord](), LastQueues()
    asked: list[int | None] = []

    async def changes(since: int | None) -> WorkloadChanges:
        before = log.since(since, rows, lambda _: 0)
        if not asked:  # as another call, which read earlier
            rows[spec.id] = WorkloadRecord(spec, WorkloadState.QUEUED, submitted=0.0, workers=())
            log.add_change(spec.id)
            asked.append(since)
            found = log.since(since, rows, lambda _: 0)
            queues.apply(before)
            return found
        asked.append(since)
        return before

    platform = SimpleNamespace(queues=queues, cluster=SimpleNamespace(changes=changes))

    found = await Platform._current_queues(cast("Any", platform))

    assert [record.id for record in found.owned("ana")] == [spec.id]
    assert len(asked) == 2
