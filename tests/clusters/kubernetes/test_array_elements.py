"""Which elements of an array may start, and when its Job may want fewer pods; pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.kubernetes.worlds import a_job, a_machine, a_pod
from runai.hub_service.clusters.kubernetes.objects.array_elements import (
    MOST_MOVES,
    ArrayJob,
    array_jobs,
    element_moves,
    with_moves,
)
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import DeviceRequest
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.snapshot.capacity_check import max_fitting_pods
from runai.hub_service.model.records import WorkloadSpec

NOW = 1000.0
SIZE = 8
FATES = ("done", "deleted", "up", "stopping", "made", "none")


def an_array(**fields: Any) -> Job:
    spec = WorkloadSpec("vision", "sweep", "ana", "job", ("train",), array=SIZE)
    return a_job("sweep", SIZE, spec=spec, is_indexed=True, **{"parallelism": 0} | fields)


def element(job: Job, index: int, **fields: Any) -> Pod:
    return a_pod(f"sweep-{index}", of=job, **{"index": index} | fields)


def up(job: Job, index: int, **fields: Any) -> Pod:
    return element(job, index, **{"node": "box", "is_up": True, "bound": 100.0} | fields)


def drawn(job: Job, *pods: Pod) -> ArrayJob:
    return array_jobs(pods, {job.uid: job})[job.uid]


def waiting(job: Job, *pods: Pod, most: int = 3, is_awaited: bool = False) -> list[Any]:
    found = drawn(job, *pods).next_elements(most, is_awaited=is_awaited)
    return [(pod.index, pod.is_made, needs) for pod, needs in found]


@pytest.mark.parametrize(
    ("fields", "pods", "found"),
    [
        pytest.param({}, [], [(0, False, 1), (1, False, 2), (2, False, 3)], id="none has pods"),
        pytest.param(
            {"deleted_elements": frozenset({0, 2})},
            [],
            [(1, False, 2), (3, False, 4), (4, False, 5)],
            id="deleted ones need pods before later ones",
        ),
        pytest.param(
            {"completed": frozenset({0}), "failed_indexes": frozenset({1})},
            [],
            [(2, False, 1), (3, False, 2), (4, False, 3)],
            id="ended ones need none",
        ),
        pytest.param({"is_suspended": True}, [], [], id="suspended by a user"),
        pytest.param({"deleted": NOW}, [], [], id="being deleted"),
        pytest.param(
            {"is_suspended": True, "is_held": True, "parallelism": 5},
            [],
            [(0, False, 1), (1, False, 2), (2, False, 3)],
            id="held",
        ),
        pytest.param(
            {"parallelism": 2},
            [],
            [],
            id="pods that do not come",
        ),
    ],
)
def test_next_elements_start_by_their_index(fields, pods, found):
    job = an_array(**fields)

    assert waiting(job, *pods) == found


def test_element_with_a_pod_is_shown_by_it_and_a_running_one_is_not():
    job = an_array(parallelism=2)

    assert waiting(job, up(job, 0), element(job, 1)) == [(1, True, 0), (2, False, 3), (3, False, 4)]


def test_failed_element_waits_for_its_next_pod():
    job = an_array(parallelism=1)
    failed = up(job, 0, is_finished=True, exit_code=3)

    assert waiting(job, failed) == [(1, False, 2), (2, False, 3), (3, False, 4)]
    assert (drawn(job, failed).is_retried, drawn(job, failed).min_parallelism) == (True, 1)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Job, list[Pod]]:
    fates = draw(st.lists(st.sampled_from(FATES), min_size=SIZE, max_size=SIZE))
    of = {fate: frozenset(i for i, its in enumerate(fates) if its == fate) for fate in fates}
    job = an_array(
        completed=of.get("done", frozenset()), deleted_elements=of.get("deleted", frozenset())
    )
    pods = [up(job, index) for index in of.get("up", ())]
    pods += [up(job, index, deleted=NOW) for index in of.get("stopping", ())]
    return job, [*pods, *(element(job, index) for index in of.get("made", ()))]


@given(worlds())
def test_parallelism_that_an_element_needs_makes_its_pod(world):
    """The Job controller makes the pods of the lowest indexes, as many as `parallelism` allows."""
    job, pods = world
    array = drawn(job, *pods)
    there = {pod.index for pod in pods} | job.completed
    pending = [index for index in range(SIZE) if index not in there]

    for pod, needs in array.next_elements(SIZE, is_awaited=True):
        if not pod.is_made:
            made = pending[: needs - len(pods)]
            assert made[-1] == pod.index


@pytest.mark.parametrize(
    ("fields", "change", "goes"),
    [
        pytest.param({"ready": 1}, {}, True, id="the running one is seen"),
        pytest.param({"ready": 0}, {}, False, id="the running one is not seen"),
        pytest.param({"ready": 2}, {}, False, id="a stopped one is still seen"),
        pytest.param({"ready": 1}, {"bound": NOW - 1}, False, id="it was just bound"),
        pytest.param({"ready": 1}, {"is_up": False}, False, id="it is not up"),
        pytest.param({"ready": 1, "parallelism": 1}, {}, False, id="asked for already"),
        pytest.param({"ready": 1, "is_suspended": True}, {}, False, id="suspended"),
        pytest.param(
            {"ready": 1, "deleted_elements": frozenset({1})}, {}, False, id="deleted one ends"
        ),
    ],
)
def test_waiting_pods_go_only_if_no_running_one_can_go(fields, change, goes):
    job = an_array(**{"parallelism": 2} | fields)
    waits = element(job, 1)

    assert drawn(job, up(job, 0, **change), waits).surplus(NOW) == ([waits] if goes else [])


def test_waiting_pods_stay_while_an_element_is_to_be_tried_again():
    job = an_array(parallelism=3, ready=1)
    failed = up(job, 2, is_finished=True, exit_code=1)

    assert drawn(job, up(job, 0), element(job, 1), failed).surplus(NOW) == []


@pytest.mark.parametrize(
    ("deleted", "done", "least"),
    [
        ({6, 7}, range(5), 0),
        ({6, 7}, range(6), 2),
        ({6}, {*range(6), 7}, 1),
        (set(), range(6), 0),
    ],
    ids=["another one waits", "only deleted ones are left", "one is left", "none is deleted"],
)
def test_deleted_elements_get_their_pods_last(deleted, done, least):
    job = an_array(completed=frozenset(done), deleted_elements=frozenset(deleted))

    assert drawn(job).min_parallelism == least


@pytest.mark.parametrize(
    ("pod", "sizes", "most"),
    [
        pytest.param({"gpus": 2}, [(3, 0), (3, 0), (3, 0)], 4, id="whole GPUs"),
        pytest.param({"part": DeviceRequest(milli=300)}, [(2, 0), (2, 0)], 13, id="a fraction"),
        pytest.param(
            {"part": DeviceRequest(milli=300, devices=2)}, [(3, 0)], 5, id="two fractions"
        ),
        pytest.param({"part": DeviceRequest(mib=5000)}, [(1, 8000), (1, 16000)], 6, id="memory"),
        pytest.param(
            {"part": DeviceRequest(mib=5000)}, [(1, 0)], 0, id="memory of unknown devices"
        ),
    ],
)
def test_shown_elements_request_more_than_all_devices(pod, sizes, most):
    nodes = [a_machine(f"n{i}", gpus, gpu_memory_mib=mib) for i, (gpus, mib) in enumerate(sizes)]

    assert max_fitting_pods(a_pod("p", **{"gpus": 0} | pod), nodes) == most


def moves_after(job: Job, stops: dict[int, str]) -> Any:
    """Return the annotated moves after these stops; None: the annotation is removed."""
    [step] = with_moves(job, stops)
    assert step["path"] == "/metadata/annotations/runai~1moved"
    return element_moves(an_array(moved=step["value"])) if step["op"] == "add" else None


@pytest.mark.parametrize(
    ("fields", "stops", "kept"),
    [
        pytest.param({}, {2: "moved to n2", 3: ""}, {2: "moved to n2"}, id="a first move"),
        pytest.param({"moved": '{"1":"a"}'}, {2: "b"}, {1: "a", 2: "b"}, id="another one"),
        pytest.param({"moved": '{"1":"a","2":"b"}'}, {1: ""}, {2: "b"}, id="the next stop"),
        pytest.param({"moved": '{"1":"a"}'}, {1: ""}, None, id="the next stop of the only one"),
        pytest.param(
            {"moved": '{"1":"a","2":"b"}', "completed": frozenset({1})},
            {3: "c"},
            {2: "b", 3: "c"},
            id="an ended element",
        ),
        pytest.param({"moved": "[1"}, {2: "b"}, {2: "b"}, id="an unreadable annotation"),
    ],
)
def test_moves_of_elements_are_kept_until_their_next_stops(fields, stops, kept) -> None:
    assert moves_after(an_array(**fields), stops) == kept


def test_stops_of_an_array_that_never_moved_write_no_moves() -> None:
    assert with_moves(an_array(), {1: "", 2: ""}) == []


def test_latest_moves_of_a_large_array_are_kept() -> None:
    first = {str(index): "a" for index in range(1, MOST_MOVES + 1)}

    kept = moves_after(an_array(moved=json.dumps(first)), {0: "b"})

    assert (len(kept), kept[0], 1 in kept) == (MOST_MOVES, "b", False)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a":"moved"}', "[" * 100_000])
def test_moves_that_cannot_be_read_are_none(text) -> None:
    assert element_moves(an_array(moved=text)) == {}
