"""Which elements of an array may start, and when its Job may want fewer pods; pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.kubernetes.parsed_objects import a_job, a_node, a_pod
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
from runai.hub_service.clusters.kubernetes.snapshot.device_bookings import max_fitting_pods
from runai.hub_service.model.records import WorkloadSpec

NOW = 1000.0
ARRAY_SIZE = 8
ELEMENT_STATES = ("done", "deleted", "up", "stopping", "made", "none")


def an_array(**fields: Any) -> Job:
    spec = WorkloadSpec("vision", "sweep", "ana", "job", ("train",), array=ARRAY_SIZE)
    return a_job("sweep", ARRAY_SIZE, spec=spec, is_indexed=True, **{"parallelism": 0} | fields)


def element(job: Job, index: int, **fields: Any) -> Pod:
    return a_pod(f"sweep-{index}", of=job, **{"index": index} | fields)


def running_element(job: Job, index: int, **fields: Any) -> Pod:
    return element(job, index, **{"node": "box", "is_up": True, "bound": 100.0} | fields)


def array_job(job: Job, *pods: Pod) -> ArrayJob:
    return array_jobs(pods, {job.uid: job})[job.uid]


def next_elements(job: Job, *pods: Pod, limit: int = 3, is_awaited: bool = False) -> list[Any]:
    found = array_job(job, *pods).next_elements(limit, is_awaited=is_awaited)
    return [(pod.index, pod.is_made, needs) for pod, needs in found]


@pytest.mark.parametrize(
    ("fields", "pods", "expected"),
    [  # of three elements each: index, whether it has a pod, the parallelism that gives it one
        pytest.param({}, [], [(0, False, 1), (1, False, 2), (2, False, 3)], id="no pods"),
        pytest.param(
            {"deleted_elements": frozenset({0, 2})},
            [],
            [(1, False, 2), (3, False, 4), (4, False, 5)],
            id="two deleted elements",
        ),
        pytest.param(
            {"completed": frozenset({0}), "failed_indexes": frozenset({1})},
            [],
            [(2, False, 1), (3, False, 2), (4, False, 3)],
            id="two ended elements",
        ),
        pytest.param({"is_suspended": True}, [], [], id="suspended by a user"),
        pytest.param({"deleted": NOW}, [], [], id="being deleted"),
        pytest.param(
            {"is_suspended": True, "is_queued": True, "parallelism": 5},
            [],
            [(0, False, 1), (1, False, 2), (2, False, 3)],
            id="queued",
        ),
        pytest.param(
            {"parallelism": 2},
            [],
            [],
            id="requested pods not created yet",
        ),
    ],
)
def test_next_array_elements_to_start_are_those_of_lowest_index(fields, pods, expected):
    job = an_array(**fields)

    assert next_elements(job, *pods) == expected


def test_next_array_elements_include_pending_pods_and_omit_running_elements():
    job = an_array(parallelism=2)
    # Of each element: index, whether it has a pod, the parallelism that gives it one.

    assert next_elements(job, running_element(job, 0), element(job, 1)) == [
        (1, True, 0),
        (2, False, 3),
        (3, False, 4),
    ]


def test_failed_array_element_is_not_startable_until_its_next_pod_exists():
    job = an_array(parallelism=1)
    failed = running_element(job, 0, is_finished=True, exit_code=3)

    assert next_elements(job, failed) == [(1, False, 2), (2, False, 3), (3, False, 4)]
    assert array_job(job, failed).is_retried
    assert array_job(job, failed).min_parallelism == 1


@st.composite
def arrays_and_pods(draw: st.DrawFn) -> tuple[Job, list[Pod]]:
    states = draw(
        st.lists(st.sampled_from(ELEMENT_STATES), min_size=ARRAY_SIZE, max_size=ARRAY_SIZE)
    )
    indexes_by_state = {
        state: frozenset(i for i, other in enumerate(states) if other == state) for state in states
    }
    job = an_array(
        completed=indexes_by_state.get("done", frozenset()),
        deleted_elements=indexes_by_state.get("deleted", frozenset()),
    )
    pods = [running_element(job, index) for index in indexes_by_state.get("up", ())]
    pods += [
        running_element(job, index, deleted=NOW) for index in indexes_by_state.get("stopping", ())
    ]
    return job, [*pods, *(element(job, index) for index in indexes_by_state.get("made", ()))]


@given(arrays_and_pods())
def test_job_parallelism_needed_by_an_array_element_creates_its_pod(array_and_pods):
    """The Job controller makes the pods of the lowest indexes, as many as `parallelism` allows."""
    job, pods = array_and_pods
    array = array_job(job, *pods)
    present_indexes = {pod.index for pod in pods} | job.completed
    pending = [index for index in range(ARRAY_SIZE) if index not in present_indexes]

    for pod, needs in array.next_elements(ARRAY_SIZE, is_awaited=True):
        if not pod.is_made:
            created = pending[: needs - len(pods)]
            assert created[-1] == pod.index


@pytest.mark.parametrize(
    ("job_fields", "pod_fields", "is_surplus"),
    [
        pytest.param({"ready": 1}, {}, True, id="running pod counted by the Job"),
        pytest.param({"ready": 0}, {}, False, id="running pod not counted yet"),
        pytest.param({"ready": 2}, {}, False, id="stopped pod still counted"),
        pytest.param({"ready": 1}, {"bound": NOW - 1}, False, id="bound a second ago"),
        pytest.param({"ready": 1}, {"is_up": False}, False, id="bound pod not up yet"),
        pytest.param({"ready": 1, "parallelism": 1}, {}, False, id="parallelism lowered already"),
        pytest.param({"ready": 1, "is_suspended": True}, {}, False, id="suspended Job"),
        pytest.param(
            {"ready": 1, "deleted_elements": frozenset({1})}, {}, False, id="deleted element"
        ),
    ],
)
def test_waiting_array_pods_are_surplus_only_if_no_running_pod_would_be_removed(
    job_fields, pod_fields, is_surplus
):
    job = an_array(**{"parallelism": 2} | job_fields)
    waiting = element(job, 1)

    assert array_job(job, running_element(job, 0, **pod_fields), waiting).surplus(NOW) == (
        [waiting] if is_surplus else []
    )


def test_waiting_array_pods_are_not_surplus_while_an_element_awaits_its_retry():
    job = an_array(parallelism=3, ready=1)
    failed = running_element(job, 2, is_finished=True, exit_code=1)

    assert array_job(job, running_element(job, 0), element(job, 1), failed).surplus(NOW) == []


@pytest.mark.parametrize(
    ("deleted", "completed", "min_parallelism"),
    [  # of eight elements
        ({6, 7}, range(5), 0),
        ({6, 7}, range(6), 2),
        ({6}, {*range(6), 7}, 1),
        (set(), range(6), 0),
    ],
    ids=["another element waits", "two deleted remain", "one deleted remains", "none deleted"],
)
def test_deleted_array_elements_get_their_pods_last(deleted, completed, min_parallelism):
    job = an_array(completed=frozenset(completed), deleted_elements=frozenset(deleted))

    assert array_job(job).min_parallelism == min_parallelism


@pytest.mark.parametrize(
    ("pod_fields", "devices", "expected"),
    [  # devices of each node: count and MiB
        pytest.param({"gpus": 2}, [(3, 0), (3, 0), (3, 0)], 4, id="whole GPUs"),
        pytest.param(
            {"device_request": DeviceRequest(milli=300)}, [(2, 0), (2, 0)], 13, id="a fraction"
        ),
        pytest.param(
            {"device_request": DeviceRequest(milli=300, devices=2)}, [(3, 0)], 5, id="two fractions"
        ),
        pytest.param(
            {"device_request": DeviceRequest(mib=5000)}, [(1, 8000), (1, 16000)], 6, id="memory"
        ),
        pytest.param(
            {"device_request": DeviceRequest(mib=5000)}, [(1, 0)], 0, id="memory of unknown devices"
        ),
    ],
)
def test_max_fitting_pods_of_an_array_is_one_more_than_all_devices_fit(
    pod_fields, devices, expected
):
    nodes = [a_node(f"n{i}", gpus, gpu_memory_mib=mib) for i, (gpus, mib) in enumerate(devices)]

    assert max_fitting_pods(a_pod("p", **{"gpus": 0} | pod_fields), nodes) == expected


def moves_after(job: Job, stops: dict[int, str]) -> Any:
    """Return the annotated moves after these stops; None: the annotation is removed."""
    [step] = with_moves(job, stops)
    assert step["path"] == "/metadata/annotations/runai~1moved"
    return element_moves(an_array(moved=step["value"])) if step["op"] == "add" else None


@pytest.mark.parametrize(
    ("fields", "stops", "expected"),
    [
        pytest.param({}, {2: "moved to n2", 3: ""}, {2: "moved to n2"}, id="first move"),
        pytest.param({"moved": '{"1":"a"}'}, {2: "b"}, {1: "a", 2: "b"}, id="another move"),
        pytest.param({"moved": '{"1":"a","2":"b"}'}, {1: ""}, {2: "b"}, id="moved element stops"),
        pytest.param({"moved": '{"1":"a"}'}, {1: ""}, None, id="only moved element stops"),
        pytest.param(
            {"moved": '{"1":"a","2":"b"}', "completed": frozenset({1})},
            {3: "c"},
            {2: "b", 3: "c"},
            id="ended element",
        ),
        pytest.param({"moved": "[1"}, {2: "b"}, {2: "b"}, id="unreadable annotation"),
    ],
)
def test_array_element_move_is_retained_until_the_next_stop_of_the_element(
    fields, stops, expected
) -> None:
    assert moves_after(an_array(**fields), stops) == expected


def test_stops_of_array_elements_that_never_moved_write_no_moves_annotation() -> None:
    assert with_moves(an_array(), {1: "", 2: ""}) == []


def test_moves_annotation_of_a_large_array_retains_the_latest_moves_only() -> None:
    first = {str(index): "a" for index in range(1, MOST_MOVES + 1)}

    moves = moves_after(an_array(moved=json.dumps(first)), {0: "b"})

    assert len(moves) == MOST_MOVES
    assert moves[0] == "b"
    assert 1 not in moves


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a":"moved"}', "[" * 100_000])
def test_unreadable_moves_annotation_of_an_array_is_ignored(text) -> None:
    assert element_moves(an_array(moved=text)) == {}
