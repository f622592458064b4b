"""Queues that are updated with each change equal queues that are built anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.api.views.workload_queues import RECENT, LastQueues, Queues
from runai.hub_service.model.records import (
    WorkerRecord,
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


@given(st.lists(records, max_size=8), st.data())
def test_updated_workload_queues_equal_rebuilt_queues_after_each_change(
    first: list[WorkloadRecord], data: st.DataObject
) -> None:
    last_queues, current = LastQueues(), first
    latest = last_queues.of(current)
    earlier_results = [(latest, current)]
    for _ in range(3):
        current = [data.draw(st.just(record) | records) for record in current]
        current += data.draw(st.lists(records, max_size=2))
        removed = data.draw(st.sets(st.integers(0, 9)))
        current = [record for place, record in enumerate(current) if place not in removed]

        latest = last_queues.of(current)
        assert last_queues.of(current) is latest
        earlier_results.append((latest, current))

        if data.draw(st.booleans()):
            assert latest == Queues.of(current)
        for user in ("ana", "mia", "nobody"):
            assert list(map(id, latest.owned(user))) == [
                id(r) for r in current if r.spec.user == user
            ]


@given(st.lists(records, max_size=8))
def test_waiting_workloads_are_queued_by_project_and_user(workloads: list[WorkloadRecord]) -> None:
    built = Queues.of(workloads)

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
    workloads = [record] * many

    assert len(Queues.of(workloads).present) == min(many, RECENT)


@given(st.lists(records, max_size=12), st.integers(0, 6))
def test_first_records_of_a_workload_queue_equal_the_start_of_the_sorted_queue(
    workloads: list[WorkloadRecord], many: int
) -> None:
    partial, complete = Queues.of(workloads), Queues.of(workloads)

    for queues, all_ in (
        (partial.of_project, complete.of_project),
        (partial.of_user, complete.of_user),
    ):
        for name, queue in all_.items():
            assert list(map(id, queues.first(name, many))) == list(map(id, queue[:many]))
        assert list(queues.first("nobody", many)) == []
    counts = {key: len(records) for key, records in partial.of_user_and_project.items()}
    assert sum(counts.values()) == sum(map(len, complete.of_user.values()))
