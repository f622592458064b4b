"""Jobs on Kubernetes: gangs start whole, pauses cost nothing but time, suspended ones stay away."""

from __future__ import annotations

import pytest

from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes
SLOW = (pytest.mark.slow, pytest.mark.timeout(600))


def bound(namespace, of: str = "") -> dict[str, str]:
    return {
        p["metadata"]["name"]: p["spec"]["nodeName"]
        for p in namespace.pods(of)
        if "nodeName" in p["spec"] and "deletionTimestamp" not in p["metadata"]
    }


def test_a_gang_starts_whole_or_not_at_all(lab, rights, eventually):
    lab.node("gpu-0", gpus=2)
    lab.project("vision", quota=4)
    work = lab.namespace
    work.create(job("gang", workers=3, gang=True, project="vision"))
    work.create(job("small", project="vision"))

    with Scheduler(rights):
        eventually(lambda: bound(work, "small"), what="the small job runs")
        sentence = eventually(
            lambda: _sentences(work, "gang") if len(_sentences(work, "gang")) == 3 else None,
            what="all of the gang know why they wait",
        )
        assert bound(work, "gang") == {}
        lab.node("gpu-1", gpus=2)
        eventually(lambda: len(bound(work, "gang")) == 3, what="the gang runs")

    assert all(sentence)


@pytest.mark.parametrize(
    "pauses", [pytest.param(2, id="twice"), pytest.param(10, id="ten times", marks=SLOW)]
)
def test_an_ordinary_job_still_completes_when_it_was_paused(lab, rights, eventually, pauses):
    lab.node("gpu-0", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty")
    work = lab.namespace
    ordinary = job("long", project="patty")
    del ordinary["spec"]["podFailurePolicy"]  # a single failure would end it: backoffLimit is 0
    work.create(ordinary)

    with Scheduler(rights):
        for turn in range(pauses):
            eventually(lambda: bound(work, "long"), what=f"the job runs, turn {turn}")
            owner = f"bob-{turn}"
            work.create(pod(owner, project="bob"))
            eventually(lambda owner=owner: work.node_of(owner), what=f"{owner} has his GPU")
            # The Job controller doubles its pause, from 10 s, after each end that was no success,
            # and forgets it when it starts anew.
            lab.plane.restart("kube-controller-manager")
            work.delete(owner)
        (name,) = eventually(lambda: bound(work, "long"), what="the job runs again")
        work.finish(name)
        status = eventually(
            lambda: s if (s := work.job("long")["status"]).get("succeeded") else None,
            what="the job is complete",
        )

    assert status.get("failed", 0) == 0


def test_what_was_paused_goes_before_what_came_later(lab, rights, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty")
    work = lab.namespace

    with Scheduler(rights):
        work.create(job("older", project="patty"))
        eventually(lambda: bound(work, "older"), what="the older job runs")
        eventually(lambda: _created_later(work, "older", "younger"), what="a second has passed")
        work.create(pod("owner", project="bob"))
        eventually(lambda: work.node_of("owner"), what="bob has his GPU")
        eventually(
            lambda: _sentences(work, "older") and _sentences(work, "younger"), what="both wait"
        )
        work.delete("owner")
        eventually(lambda: bound(work), what="one of them runs")

    assert bound(work, "older")
    assert not bound(work, "younger")


def test_a_suspended_job_holds_nothing_until_it_is_resumed(lab, rights, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("vision", quota=1)
    work = lab.namespace
    work.create(job("train", project="vision"))
    name = f"vision/{work.name}.train"

    with Scheduler(rights) as scheduler:
        eventually(lambda: bound(work), what="it runs")
        scheduler.call(scheduler.cluster.suspend(name))
        eventually(lambda: not work.pods(), what="it is gone")
        scheduler.call(scheduler.cluster.resume(name))
        eventually(lambda: bound(work), what="it runs again")


def test_a_training_in_a_bare_pod_is_refused_with_the_way_out(lab, rights, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("vision", quota=1)
    lab.namespace.create(pod("train", project="vision", labels={"runai/kind": "train"}))

    with Scheduler(rights):
        eventually(
            lambda: "use a Job" in " ".join(_events(lab, "train")), what="it is told to be a Job"
        )

    assert lab.namespace.node_of("train") == ""


def _created_later(namespace, first: str, second: str) -> bool:
    """Make the second job until the API server's clock, of whole seconds, says it is younger."""
    made = namespace.create(job(second, project="patty"))["metadata"]["creationTimestamp"]
    if made > namespace.job(first)["metadata"]["creationTimestamp"]:
        return True
    namespace.delete(second, is_job=True)
    return False


def _sentences(namespace, of: str) -> list[str]:
    return [
        condition["message"]
        for p in namespace.pods(of)
        for condition in p["status"].get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]


def _events(lab, name: str) -> list[str]:
    path = f"/api/v1/namespaces/{lab.namespace.name}/events"
    found = lab.plane.request("GET", path)["items"]
    return [e["message"] for e in found if e["involvedObject"]["name"] == name]
