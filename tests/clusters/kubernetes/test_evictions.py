"""Evictions that fail between their two requests: same end, and no pod counts as failed.

The first request takes a pod's end out of its Job's count, the second evicts the pod. After any
fault in between the pod is gone and created again, or stays and is counted.
"""

from __future__ import annotations

import pytest

from clusters.kubernetes.test_pdb_backoff import are_tracked, plain, running
from control_plane.faults import FaultyServer
from control_plane.objects import pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

REQUESTS = {"left out": ("PATCH", "/status"), "evicted": ("POST", "/eviction")}
# A kill before the second request equals a kill after the first.
ROWS = [
    *(("left out", fate) for fate in ("409", "lost", "killed after")),
    *(("evicted", fate) for fate in ("409", "500", "lost", "killed after")),
]


@pytest.fixture
def work(lab):
    lab.node("gpu-0", gpus=2)
    lab.project("bob", quota=2)
    lab.project("patty")
    lab.namespace.create(plain("long"))
    return lab.namespace


def wait_until_complete(work, eventually):
    return eventually(
        lambda: s if (s := work.job("long")["status"]).get("succeeded") == 2 else None,
        what="it is complete",
    )


def job_outcome_after_preemption(work, before: list[str], eventually):
    """Return the Job's outcome after bob's pod has come and gone."""
    eventually(lambda: work.node_of("owner"), what="bob has his GPUs")
    work.delete("owner")
    eventually(lambda: len(running(work, "long")) == 2, what="it runs again")
    assert set(running(work, "long")).isdisjoint(before)
    eventually(lambda: are_tracked(work, "long"), what="its pods are counted")
    for name in running(work, "long"):
        work.finish(name)
    return wait_until_complete(work, eventually)


@pytest.mark.parametrize(("step", "fate"), [pytest.param(*row, id="-".join(row)) for row in ROWS])
def test_failed_eviction_call_still_pauses_the_job_without_a_job_failure(
    work, rights, eventually, step, fate
):
    method, part = REQUESTS[step]
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig):
        eventually(lambda: len(running(work, "long")) == 2, what="it runs")
        before = running(work, "long")
        part = f"{before[0]}{part}"
        if fate == "killed after":
            server.die_at(method, part, after=True)
        elif fate == "lost":
            server.lose_answer(method, part)
        else:
            server.refuse(method, part, status=int(fate))
        work.create(pod("owner", 2, project="bob"))
        if fate != "killed after":
            assert job_outcome_after_preemption(work, before, eventually).get("failed", 0) == 0
            assert server.are_over
            return
        eventually(lambda: server.is_down, what="the first one dies")
    with Scheduler(rights):
        assert job_outcome_after_preemption(work, before, eventually).get("failed", 0) == 0


def test_restarted_scheduler_counts_pods_that_succeeded_before_their_eviction_call(
    work, rights, eventually
):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig):
        eventually(lambda: len(running(work, "long")) == 2, what="it runs")
        server.die_at("POST", "/eviction")
        work.create(pod("owner", 2, project="bob"))
        eventually(lambda: server.is_down, what="the first one dies")
    assert not are_tracked(work, "long")
    for name in running(work, "long"):
        work.finish(name)
    eventually(lambda: not running(work, "long"), what="both have ended")

    with Scheduler(rights):
        status = wait_until_complete(work, eventually)

    assert status.get("failed", 0) == 0
