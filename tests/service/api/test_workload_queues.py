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

HELD = (WorkerRecord("w-0", 0, "reserved", "here", (DeviceShare(0, MilliGpu(500)),)),)
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
    workers=st.sampled_from([(), HELD]),
    position=st.none() | st.integers(1, 3),
)


@given(st.lists(records, max_size=8), st.data())
def test_queues_follow_whatever_comes_changes_and_goes(
    first: list[WorkloadRecord], data: st.DataObject
) -> None:
    queues, now = LastQueues(), first
    found = queues.of(now)
    shown = [(found, now)]
    for _ in range(3):
        now = [data.draw(st.just(record) | records) for record in now]
        now += data.draw(st.lists(records, max_size=2))
        gone = data.draw(st.sets(st.integers(0, 9)))
        now = [record for place, record in enumerate(now) if place not in gone]

        found = queues.of(now)
        assert queues.of(now) is found
        shown.append((found, now))

        if data.draw(st.booleans()):
            assert found == Queues.of(now)
        for user in ("ana", "mia", "nobody"):
            assert list(map(id, found.owned(user))) == [id(r) for r in now if r.spec.user == user]


@given(st.lists(records, max_size=8))
def test_each_is_where_it_belongs(given: list[WorkloadRecord]) -> None:
    found = Queues.of(given)

    waiting = [r for r in given if r.state.value in {"queued", "paused", "retrying"}]
    for queues, of in (
        (found.of_project, lambda record: record.spec.project),
        (found.of_user, lambda record: record.spec.user),
    ):
        assert sorted(map(id, waiting)) == sorted(id(r) for queue in queues.values() for r in queue)
        assert all(of(record) == name for name, queue in queues.items() for record in queue)
        assert all(queues.values())
    assert [*found.present] == [record for record in given if record not in waiting]
    assert [*found.holding.records] == [record for record in given if record.workers]
    for queue in found.of_project.values():
        places = [r.position or 9 for r in queue]
        assert places == sorted(places)


@given(records.filter(lambda record: record.state.finished), st.integers(0, 2 * RECENT))
def test_queues_limit_the_number_of_finished_workloads(record: WorkloadRecord, many: int) -> None:
    given = [record] * many

    assert len(Queues.of(given).present) == min(many, RECENT)


@given(st.lists(records, max_size=12), st.integers(0, 6))
def test_the_first_of_a_queue_are_the_first_of_the_whole(
    given: list[WorkloadRecord], many: int
) -> None:
    found, whole = Queues.of(given), Queues.of(given)

    for queues, all_ in ((found.of_project, whole.of_project), (found.of_user, whole.of_user)):
        for name, queue in all_.items():
            assert list(map(id, queues.first(name, many))) == list(map(id, queue[:many]))
        assert list(queues.first("nobody", many)) == []
    alike = {key: len(records) for key, records in found.of_user_and_project.items()}
    assert sum(alike.values()) == sum(map(len, whole.of_user.values()))
