"""Jobs on Kubernetes: gangs start whole, pauses cost nothing but time, suspended ones stay away."""

from __future__ import annotations

import json

import pytest

from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]


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


def test_an_ordinary_job_that_was_paused_ten_times_still_completes(lab, rights, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty")
    work = lab.namespace
    ordinary = job("long", project="patty")
    del ordinary["spec"]["podFailurePolicy"]  # a single failure would end it: backoffLimit is 0
    work.create(ordinary)

    with Scheduler(rights):
        for turn in range(10):
            eventually(lambda: bound(work, "long"), what=f"the job runs, turn {turn}")
            owner = f"bob-{turn}"
            work.create(pod(owner, project="bob"))
            eventually(lambda owner=owner: work.node_of(owner), what=f"{owner} has his GPU")
            work.delete(owner)
        (name,) = eventually(lambda: bound(work, "long"), what="the job runs again")
        work.finish(name)
        status = eventually(
            lambda: s if (s := work.job("long")["status"]).get("succeeded") else None,
            what="the job is complete",
        )

    assert status.get("failed", 0) == 0
    assert len(json.loads(work.job("long")["metadata"]["annotations"]["runai/pauses"])) == 10


def test_jobs_whose_pods_were_paused_one_by_one_ten_times_still_complete(lab, rights, eventually):
    """Nothing of it is counted, whatever their `restartPolicy`; no pod waits for a back-off."""
    lab.node("gpu-0", gpus=4)
    lab.project("bob", quota=3)
    lab.project("patty")
    work = lab.namespace
    names = ("never", "on-failure")
    for name, policy in zip(names, ("Never", "OnFailure"), strict=True):
        plain = job(name, workers=2, project="patty")
        del plain["spec"]["podFailurePolicy"], plain["spec"]["podReplacementPolicy"]
        plain["spec"]["template"]["spec"]["restartPolicy"] = policy
        work.create(plain)  # backoffLimit is 0: a single failure would end it

    with Scheduler(rights):
        for turn in range(10):
            eventually(lambda: all(len(bound(work, n)) == 2 for n in names), what=f"turn {turn}")
            owner = f"bob-{turn}"
            work.create(pod(owner, 3, project="bob"))
            eventually(lambda owner=owner: work.node_of(owner), what=f"{owner} has his GPUs")
            work.delete(owner)
        eventually(lambda: all(len(bound(work, n)) == 2 for n in names), what="they run again")
        for name in (*bound(work, names[0]), *bound(work, names[1])):
            work.finish(name)
        ended = {
            name: eventually(
                lambda name=name: s if (s := work.job(name)["status"]).get("succeeded") == 2 else 0,
                what=f"{name} is complete",
            )
            for name in names
        }

    assert {name: status.get("failed", 0) for name, status in ended.items()} == dict.fromkeys(
        names, 0
    )
    assert {work.job(name)["spec"]["backoffLimit"] for name in names} == {0}


def test_a_paused_job_has_no_pods_and_says_why_it_waits(lab, rights, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty")
    work = lab.namespace
    work.create(job("long", project="patty"))

    with Scheduler(rights):
        eventually(lambda: bound(work, "long"), what="the job runs")
        work.create(pod("bobs-notebook", project="bob"))
        eventually(lambda: work.node_of("bobs-notebook"), what="bob has his GPU")
        eventually(lambda: not work.pods("long"), what="the job's pod is gone")
        described = eventually(
            lambda: text if "Waiting" in (text := _described(lab, "job", "long")) else None,
            what="it says why",
        )

    assert "patty holds 0 of its fair share of 0 GPUs" in described
    assert work.job("long")["spec"]["suspend"] is True


def test_a_gang_is_paused_and_comes_back_whole(lab, rights, eventually):
    lab.node("gpu-0", gpus=3)
    lab.project("bob", quota=3)
    lab.project("patty")
    work = lab.namespace
    work.create(job("gang", workers=3, gang=True, project="patty"))

    with Scheduler(rights):
        eventually(lambda: len(bound(work, "gang")) == 3, what="the gang runs")
        work.create(pod("bobs-notebook", project="bob"))
        eventually(lambda: work.node_of("bobs-notebook"), what="bob has his GPU")
        eventually(lambda: not work.pods("gang"), what="the gang is gone")
        work.delete("bobs-notebook")
        eventually(lambda: len(bound(work, "gang")) == 3, what="the gang runs again")

    assert len(work.pods("gang")) == 3


def test_a_job_that_another_controller_suspends_is_evicted(lab, rights, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty")
    work = lab.namespace
    above = lab.plane.request(
        "POST", f"/api/v1/namespaces/{work.name}/configmaps", {"metadata": {"name": "above"}}
    )
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "above", "controller": True}
    owned = job("long", project="patty")
    owned["metadata"]["ownerReferences"] = [{**owner, "uid": above["metadata"]["uid"]}]
    work.create(owned)

    with Scheduler(rights):
        before = eventually(lambda: bound(work, "long"), what="the job runs")
        work.create(pod("bobs-notebook", project="bob"))
        eventually(lambda: work.node_of("bobs-notebook"), what="bob has his GPU")

    assert not work.job("long")["spec"].get("suspend")
    assert before.keys().isdisjoint(bound(work, "long"))


def test_a_job_suspended_by_its_user_while_it_waits_stays_away(lab, rights, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty")
    work = lab.namespace
    work.create(job("long", project="patty"))
    name = f"patty/{work.name}.long"

    with Scheduler(rights) as scheduler:
        eventually(lambda: bound(work, "long"), what="the job runs")
        work.create(pod("bobs-notebook", project="bob"))
        eventually(lambda: not work.pods("long"), what="it is paused")
        scheduler.call(scheduler.cluster.suspend(name, by="ana"))
        work.delete("bobs-notebook")
        work.create(job("next", project="patty"))
        eventually(lambda: bound(work, "next"), what="what came later runs")
        assert not work.pods("long")
        scheduler.call(scheduler.cluster.resume(name, by="ana"))
        work.delete("next", is_job=True)
        eventually(lambda: bound(work, "long"), what="it runs again")


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
        eventually(lambda: not work.pods("older") and _sentences(work, "younger"), what="both wait")
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
        scheduler.call(scheduler.cluster.suspend(name, by="ana"))
        eventually(lambda: not work.pods(), what="it is gone")
        scheduler.call(scheduler.cluster.resume(name, by="ana"))
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


def _described(lab, kind: str, name: str) -> str:
    text: str = lab.plane.kubectl("describe", kind, "-n", lab.namespace.name, name)
    return text


def _events(lab, name: str) -> list[str]:
    path = f"/api/v1/namespaces/{lab.namespace.name}/events"
    found = lab.plane.request("GET", path)["items"]
    return [e["message"] for e in found if e["involvedObject"]["name"] == name]
