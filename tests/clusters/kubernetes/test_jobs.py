"""Jobs on Kubernetes: gangs start whole, pauses cost nothing but time, suspended ones stay away."""

from __future__ import annotations

import json

import pytest

from clusters.kubernetes.gpu_sharing import events, events_of
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]


PAUSES = 3
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def bound(namespace, of: str = "") -> dict[str, str]:
    return {
        p["metadata"]["name"]: p["spec"]["nodeName"]
        for p in namespace.pods(of)
        if "nodeName" in p["spec"] and "deletionTimestamp" not in p["metadata"]
    }


def test_job_paused_repeatedly_still_completes(lab, kubeconfig, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty")
    work = lab.namespace
    plain_job = job("long", project="patty")
    del plain_job["spec"]["podFailurePolicy"]  # a single failure would end it: backoffLimit is 0
    work.create(plain_job)

    with Scheduler(kubeconfig):
        for turn in range(PAUSES):
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
    assert len(json.loads(work.job("long")["metadata"]["annotations"]["runai/pauses"])) == PAUSES


def test_jobs_paused_pod_by_pod_complete_without_failures(lab, kubeconfig, eventually):
    """No pod counts as failed, whatever its `restartPolicy`; no pod waits for a back-off."""
    lab.node("gpu-0", gpus=4)
    lab.project("bob", quota=3)
    lab.project("patty")
    work = lab.namespace
    names = ("never", "on-failure")
    for name, policy in zip(names, ("Never", "OnFailure"), strict=True):
        plain_job = job(name, workers=2, project="patty")
        del plain_job["spec"]["podFailurePolicy"], plain_job["spec"]["podReplacementPolicy"]
        plain_job["spec"]["template"]["spec"]["restartPolicy"] = policy
        work.create(plain_job)  # backoffLimit is 0: a single failure would end it

    with Scheduler(kubeconfig):
        for turn in range(PAUSES):
            eventually(lambda: all(len(bound(work, n)) == 2 for n in names), what=f"turn {turn}")
            owner = f"bob-{turn}"
            work.create(pod(owner, 3, project="bob"))
            eventually(lambda owner=owner: work.node_of(owner), what=f"{owner} has his GPUs")
            work.delete(owner)
        eventually(lambda: all(len(bound(work, n)) == 2 for n in names), what="both run again")
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


def test_paused_job_has_no_pods_and_describes_why_it_waits(lab, kubeconfig, eventually):
    lab.node("gpu-0", gpus=2)
    lab.project("bob", quota=2)
    lab.project("patty")
    work = lab.namespace
    work.create(job("long", workers=2, gang=True, project="patty"))

    with Scheduler(kubeconfig):
        eventually(lambda: len(bound(work, "long")) == 2, what="the job runs")
        work.create(pod("bobs-notebook", 2, project="bob"))
        eventually(lambda: work.node_of("bobs-notebook"), what="bob has his GPUs")
        eventually(lambda: not work.pods("long"), what="the job's pods are gone")
        description = eventually(
            lambda: text if "Waiting" in (text := _described(lab, "job", "long")) else None,
            what="the Job says why it waits",
        )

        eventually(
            lambda: sum("bob" in text for text in events(work, "Preempted")) == 3,
            what="Events of both pods and of the Job name bob",
        )

    assert len(events_of(work, work.job("long"), "Preempted")) == 1
    assert "patty holds 0 of its fair share of 0 GPUs" in description
    assert work.job("long")["spec"]["suspend"] is True


def test_finally_failed_index_of_an_indexed_job_does_not_block_the_remaining_indexes(
    lab, kubeconfig, eventually
):
    lab.node("gpu-0", gpus=3)
    lab.project("patty", quota=3)
    work = lab.namespace
    indexed = job("sweep", workers=3, gang=True, project="patty", backoffLimitPerIndex=0)
    del indexed["spec"]["backoffLimit"]
    work.create(indexed)

    with Scheduler(kubeconfig):
        first, second, third = eventually(
            lambda: p if len(p := sorted(bound(work, "sweep"))) == 3 else None, what="all run"
        )
        work.finish(first, exit_code=1)
        work.finish(second)
        eventually(
            lambda: (
                work.job("sweep")["status"].get("failedIndexes") == "0"
                and work.job("sweep")["status"].get("succeeded")
            ),
            what="one index failed, one succeeded",
        )
        work.evict(third)
        (again,) = eventually(
            lambda: set(bound(work, "sweep")) - {first, second, third},
            what="the last runs again",
        )
        work.finish(again)
        eventually(
            lambda: work.job("sweep")["status"].get("completedIndexes") == "1,2",
            what="all but the failed one are complete",
        )


def test_job_owned_by_a_controller_is_evicted_and_not_suspended(lab, kubeconfig, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty")
    work = lab.namespace
    config_map = lab.plane.request(
        "POST", f"/api/v1/namespaces/{work.name}/configmaps", {"metadata": {"name": "above"}}
    )
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "above", "controller": True}
    owned = job("long", project="patty")
    owned["metadata"]["ownerReferences"] = [{**owner, "uid": config_map["metadata"]["uid"]}]
    work.create(owned)

    with Scheduler(kubeconfig):
        before = eventually(lambda: bound(work, "long"), what="the job runs")
        work.create(pod("bobs-notebook", project="bob"))
        eventually(lambda: work.node_of("bobs-notebook"), what="bob has his GPU")

        preempted_events = eventually(
            lambda: events_of(work, work.job("long"), "Preempted"),
            what="an Event of the Job says why",
        )

    assert not work.job("long")["spec"].get("suspend")
    assert before.keys().isdisjoint(bound(work, "long"))
    assert len(preempted_events) == 1


def test_job_of_a_lost_node_runs_again_on_the_remaining_node(lab, kubeconfig, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("vision", quota=1)
    work = lab.namespace
    toleration = {
        "key": "node.kubernetes.io/not-ready",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 0,
    }
    train = job("train", project="vision")
    train["spec"]["template"]["spec"]["tolerations"] = [toleration]
    work.create(train)

    with Scheduler(kubeconfig):
        eventually(lambda: [p for p in work.pods() if "nodeName" in p["spec"]], what="the job runs")
        lab.node("gpu-1", gpus=1)
        down = {"metadata": {"annotations": {"test/down": "true"}}}
        lab.plane.request("PATCH", "/api/v1/nodes/gpu-0", down, content_type=MERGE)
        lost = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
        lab.plane.request(
            "PATCH",
            "/api/v1/nodes/gpu-0/status",
            {"status": {"conditions": [lost]}},
            content_type=STRATEGIC,
        )
        eventually(
            lambda: [p["spec"].get("nodeName") for p in work.pods("train")] == ["gpu-1"],
            what="the job runs on the other node",
        )


def _described(lab, kind: str, name: str) -> str:
    text: str = lab.plane.kubectl("describe", kind, "-n", lab.namespace.name, name)
    return text
