"""Evictions that fail between their two requests: same end, and no pod counts as failed.

The first request takes a pod's end out of its Job's count, the second evicts the pod. After any
fault in between the pod is gone and created again, or stays and is counted.
"""

from __future__ import annotations

import pytest

from clusters.kubernetes.test_pdb_backoff import job_will_count_pods, running_pods, two_pod_job
from control_plane.faults import FaultyServer
from control_plane.objects import pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

REQUESTS = {"status patch": ("PATCH", "/status"), "eviction": ("POST", "/eviction")}
# A kill before the second request equals a kill after the first.
FAILURES = [
    *(("status patch", fate) for fate in ("409", "answer lost", "scheduler killed")),
    *(("eviction", fate) for fate in ("409", "500", "answer lost", "scheduler killed")),
]


@pytest.fixture
def namespace(lab):
    lab.node("gpu-0", gpus=2)
    lab.project("bob", quota=2)
    lab.project("patty")
    lab.namespace.create(two_pod_job("long"))
    return lab.namespace


def wait_until_complete(namespace, eventually):
    return eventually(
        lambda: s if (s := namespace.job("long")["status"]).get("succeeded") == 2 else None,
        what="the Job is complete",
    )


def job_outcome_after_preemption(namespace, before: list[str], eventually):
    """Return the Job's outcome after bob's pod has come and gone."""
    eventually(lambda: namespace.node_of("owner"), what="bob has his GPUs")
    namespace.delete("owner")
    eventually(lambda: len(running_pods(namespace, "long")) == 2, what="both pods run again")
    assert set(running_pods(namespace, "long")).isdisjoint(before)
    eventually(lambda: job_will_count_pods(namespace, "long"), what="its pods are counted")
    for name in running_pods(namespace, "long"):
        namespace.finish(name)
    return wait_until_complete(namespace, eventually)


@pytest.mark.parametrize(("step", "fate"), [pytest.param(*f, id=": ".join(f)) for f in FAILURES])
def test_failed_eviction_call_still_pauses_the_job_without_a_job_failure(
    namespace, kubeconfig, eventually, step, fate
):
    method, path_part = REQUESTS[step]
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig):
        eventually(lambda: len(running_pods(namespace, "long")) == 2, what="both pods run")
        before = running_pods(namespace, "long")
        path_part = f"{before[0]}{path_part}"
        if fate == "scheduler killed":
            server.die_at(method, path_part, after=True)
        elif fate == "answer lost":
            server.lose_answer(method, path_part)
        else:
            server.refuse(method, path_part, status=int(fate))
        namespace.create(pod("owner", 2, project="bob"))
        if fate != "scheduler killed":
            assert job_outcome_after_preemption(namespace, before, eventually).get("failed", 0) == 0
            assert server.are_over
            return
        eventually(lambda: server.is_down, what="the first scheduler is dead")
    with Scheduler(kubeconfig):
        assert job_outcome_after_preemption(namespace, before, eventually).get("failed", 0) == 0


def test_restarted_scheduler_counts_pods_that_succeeded_before_their_eviction_call(
    namespace, kubeconfig, eventually
):
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig):
        eventually(lambda: len(running_pods(namespace, "long")) == 2, what="both pods run")
        server.die_at("POST", "/eviction")
        namespace.create(pod("owner", 2, project="bob"))
        eventually(lambda: server.is_down, what="the first scheduler is dead")
    assert not job_will_count_pods(namespace, "long")
    for name in running_pods(namespace, "long"):
        namespace.finish(name)
    eventually(lambda: not running_pods(namespace, "long"), what="both have ended")

    with Scheduler(kubeconfig):
        status = wait_until_complete(namespace, eventually)

    assert status.get("failed", 0) == 0
