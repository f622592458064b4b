"""The grouping of pods into workloads, and the time since which each waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters.kubernetes.parsed_objects import a_job, a_pod, elastic_spec
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGroup, PodGrouping


def group_pods(*pods, jobs=(), namespaces=None, awaited=()) -> list[PodGroup]:
    return PodGrouping().groups(
        pods, {job.uid: job for job in jobs}, namespaces or {}, "default", awaited
    )


def pod_names(found: list[PodGroup]) -> dict[str, list[str]]:
    return {group.name: [pod.name for pod in group.pods] for group in found}


def test_bare_pod_is_a_workload_of_its_own():
    groups = group_pods(a_pod("notebook"))

    assert pod_names(groups) == {"vision/lab.notebook": ["notebook"]}


def test_workers_of_an_indexed_job_start_together():
    gang = a_job("train", workers=3)

    groups = group_pods(*(a_pod(f"train-{i}", of=gang) for i in range(3)), jobs=[gang])

    assert pod_names(groups) == {"vision/lab.train": ["train-0", "train-1", "train-2"]}
    assert groups[0].minimum == 3


def test_incomplete_gang_reports_its_missing_workers():
    gang = a_job("train", workers=3)

    groups = group_pods(a_pod("train-0", of=gang), jobs=[gang])

    assert groups[0].missing == 2


def test_gang_with_a_finished_worker_needs_only_the_remaining_workers():
    gang = a_job("train", workers=3, succeeded=1)
    done = a_pod("train-0", of=gang, is_finished=True, node="gpu-0")

    groups = group_pods(done, a_pod("train-1", of=gang), a_pod("train-2", of=gang), jobs=[gang])

    assert pod_names(groups) == {"vision/lab.train": ["train-1", "train-2"]}
    assert (groups[0].minimum, groups[0].missing) == (2, 0)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"is_indexed": False}, id="a Job of several pods that are all alike"),
        pytest.param({"completions": 10}, id="an Indexed Job that runs two at a time"),
    ],
)
def test_pods_that_need_not_run_together_are_each_a_workload(fields):
    work = a_job("work", workers=2, **fields)

    groups = group_pods(a_pod("work-a", of=work), a_pod("work-b", of=work), jobs=[work])

    assert pod_names(groups) == {"vision/lab.work-a": ["work-a"], "vision/lab.work-b": ["work-b"]}


def test_pods_with_the_gang_label_are_a_gang():
    work = a_job("work", workers=2, is_indexed=False)

    groups = group_pods(*(a_pod(f"work-{i}", of=work, is_gang=True) for i in "ab"), jobs=[work])

    assert pod_names(groups) == {"vision/lab.work": ["work-a", "work-b"]}


def test_recreated_pod_has_the_submission_time_of_its_job():
    old, young = a_job("old", created=10.0), a_job("young", created=20.0)

    groups = group_pods(
        a_pod("young-1", of=young, created=20.0),
        a_pod("old-2", of=old, created=90.0),
        jobs=[old, young],
    )

    assert [(group.name, group.submitted) for group in groups] == [
        ("vision/lab.old", 10.0),
        ("vision/lab.young", 20.0),
    ]


def test_replacement_pod_waits_until_the_stopping_pod_has_ended():
    job = a_job("again")
    terminating = a_pod("again-1", of=job, node="gpu-0", deleted=130.0)

    groups = group_pods(a_pod("again-2", of=job), terminating, jobs=[job])

    assert pod_names(groups) == {"vision/lab.again": ["again-1"]}


@pytest.mark.parametrize(
    ("fields", "jobs"),
    [
        pytest.param({"scheduler": "default-scheduler"}, [a_job("j")], id="another scheduler's"),
        pytest.param({"is_finished": True, "node": "gpu-0"}, [a_job("j")], id="finished"),
        pytest.param({"is_gated": True}, [a_job("j")], id="gated"),
        pytest.param({"deleted": 130.0}, [a_job("j")], id="deleted before it ran"),
        pytest.param({}, [], id="seen before its Job"),
        pytest.param({}, [a_job("j", is_suspended=True)], id="of a suspended Job"),
    ],
)
def test_pods_outside_the_schedulers_control_form_no_workload_group(fields, jobs):
    assert group_pods(a_pod("j-0", of=a_job("j"), **fields), jobs=jobs) == []


@pytest.mark.parametrize(
    ("label", "namespace", "project"),
    [
        pytest.param("speech", "vision", "speech", id="the pod's own label"),
        pytest.param("", "vision", "vision", id="else its namespace's"),
        pytest.param("", "", "default", id="else the default project"),
    ],
)
def test_project_of_a_workload_is_its_label_or_namespace_or_default(label, namespace, project):
    groups = group_pods(a_pod("notebook", project=label), namespaces={"lab": namespace})

    assert groups[0].project == project


def test_pod_with_the_name_of_a_job_is_a_separate_workload():
    train = a_job("train")

    groups = group_pods(a_pod("train-0", of=train), a_pod("train"), jobs=[train])

    assert pod_names(groups) == {"vision/lab.train": ["train-0"], "vision/lab.train~": ["train"]}


def test_queued_job_has_waiting_workers_without_pods():
    gang = a_job("train", workers=3, is_suspended=True, is_queued=True, completed=frozenset({1}))

    (group,) = group_pods(jobs=[replace(gang, succeeded=1)])

    assert [(p.worker, p.is_made) for p in group.pods] == [
        ("vision/lab.train-0", False),
        ("vision/lab.train-2", False),
    ]
    assert (group.submitted, group.minimum) == (50.0, 2)


def test_finally_failed_index_is_not_a_missing_worker():
    gang = a_job("train", workers=3, failed_indexes=frozenset({0}), completed=frozenset({1}))

    (group,) = group_pods(a_pod("train-2", of=gang), jobs=[replace(gang, succeeded=1)])

    assert (pod_names([group]), group.minimum, group.missing) == (
        {"vision/lab.train": ["train-2"]},
        1,
        0,
    )


def test_suspended_job_lists_each_worker_once_while_its_pods_stop():
    gang = a_job("train", workers=2, is_suspended=True, is_queued=True)

    (group,) = group_pods(a_pod("train-0", of=gang, node="gpu-0", deleted=130.0), jobs=[gang])

    assert [(p.worker, p.is_made) for p in group.pods] == [
        ("vision/lab.train-0", True),
        ("vision/lab.train-1", False),
    ]


@pytest.mark.parametrize(
    ("fields", "is_awaited", "worker_count"),
    [
        pytest.param({"is_suspended": True}, False, 0, id="suspended by its user"),
        pytest.param({"outcome": "Failed"}, True, 0, id="finished"),
        pytest.param({}, False, 0, id="pods not awaited"),
        pytest.param({}, True, 1, id="resumed a moment ago"),
    ],
)
def test_job_without_pods_lists_a_worker_only_while_its_pod_is_awaited(
    fields, is_awaited, worker_count
):
    train = a_job("train", **fields)

    groups = group_pods(jobs=[train], awaited={train.uid} if is_awaited else ())

    assert sum(len(group.pods) for group in groups) == worker_count


def test_new_pod_of_a_resumed_job_has_the_name_of_the_worker_that_waited():
    train = a_job("train", is_suspended=True, is_queued=True)
    (waiting,) = group_pods(jobs=[train])
    resumed_job = replace(train, is_suspended=False, is_queued=False)

    (running,) = group_pods(a_pod("train-x7k2p", of=resumed_job), jobs=[resumed_job])

    assert [(p.called, p.place) for p in running.pods] == [
        (p.called, p.place) for p in waiting.pods
    ]


def test_surplus_pods_of_a_shrunk_job_are_not_started():
    elastic = a_job("e", workers=2, spec=elastic_spec("e", workers=2))
    up = [a_pod(f"e-{i}", of=elastic, node="gpu-0") for i in (0, 2)]

    groups = group_pods(*up, *(a_pod(f"e-{i}", of=elastic) for i in (1, 3)), jobs=[elastic])

    assert [pod.name for pod in groups[0].pods if pod.node] == ["e-0", "e-2"]
    assert "e-3" not in pod_names(groups)["vision/e"]
