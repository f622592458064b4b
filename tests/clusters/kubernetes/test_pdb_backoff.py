"""Disruption budgets: a protected pod is not stopped, another one is, and each gets a message.

The budgets are the API server's own: it refuses the eviction (429), as it does to `kubectl drain`.
"""

from __future__ import annotations

import time

import pytest

from clusters.kubernetes.gpu_sharing import events, wait_message
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

TRACKING = "batch.kubernetes.io/job-tracking"


def two_pod_job(name: str, priority: int = 50):
    """Return a Job of two pods, each a workload of its own: they are evicted, not suspended."""
    made = job(name, workers=2, project="patty", annotations={"runai/priority": str(priority)})
    del made["spec"]["podFailurePolicy"], made["spec"]["podReplacementPolicy"]
    return made


def running_pods(namespace, of: str = "") -> list[str]:
    return [
        str(p["metadata"]["name"])
        for p in namespace.pods(of)
        if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]
    ]


def create_disruption_budget(lab, eventually, of: str, min_available: int) -> str:
    """Create a PodDisruptionBudget for so many of a Job's pods; return its path."""
    path = f"/apis/policy/v1/namespaces/{lab.namespace.name}/poddisruptionbudgets"
    chosen = {"matchLabels": {"batch.kubernetes.io/job-name": of}}
    spec = {"minAvailable": min_available, "selector": chosen}
    lab.plane.request("POST", path, {"metadata": {"name": of}, "spec": spec})

    def budget_is_ready() -> bool:
        found = lab.plane.request("GET", f"{path}/{of}").get("status", {})
        return bool(found.get("currentHealthy") == 2 and found["expectedPods"] == 2)

    eventually(budget_is_ready, what="the budget knows its pods")
    return f"{path}/{of}"


def job_will_count_pods(namespace, of: str) -> bool:
    """Return True if the Job controller has still to count each of its pods."""
    metadata = [p["metadata"] for p in namespace.pods(of)]
    return all(TRACKING in m.get("finalizers", ()) for m in metadata) and not any(
        "runai/leaving" in m["annotations"] for m in metadata
    )


def test_scheduler_evicts_a_second_job_if_a_disruption_budget_protects_the_first(
    lab, kubeconfig, eventually
):
    lab.node("gpu-0", gpus=4)
    lab.project("bob", quota=2)
    lab.project("patty")
    work = lab.namespace
    work.create(two_pod_job("protected", priority=25))  # it would be the first victim
    work.create(two_pod_job("other"))

    with Scheduler(kubeconfig):
        eventually(
            lambda: len(running_pods(work, "protected")) == len(running_pods(work, "other")) == 2,
            what="both run",
        )
        before = running_pods(work, "protected")
        create_disruption_budget(lab, eventually, "protected", min_available=2)
        work.create(pod("owner", 2, project="bob"))
        eventually(lambda: work.node_of("owner"), what="bob has his GPUs")
        protection_events = eventually(
            lambda: events(work, "Kept"), what="an Event names the spared pod"
        )
        eventually(lambda: job_will_count_pods(work, "protected"), what="its pods will be counted")
        assert running_pods(work, "protected") == before
        for name in before:
            work.finish(name)
        status = eventually(
            lambda: s if (s := work.job("protected")["status"]).get("succeeded") == 2 else None,
            what="the job is complete",
        )

    assert protection_events[0].startswith(
        f"was to be stopped for bob/{work.name}.owner, but stays: "
    )
    assert (
        "The disruption budget protected needs 2 healthy pods and has 2 currently"
        in protection_events[0]
    )
    assert status.get("failed", 0) == 0


def test_claimant_names_the_blocking_disruption_budget_and_starts_after_its_deletion(
    lab, kubeconfig, eventually
):
    lab.node("gpu-0", gpus=2)
    lab.project("bob", quota=2)
    lab.project("patty")
    work = lab.namespace
    work.create(two_pod_job("protected"))
    ahead_s = 0.0
    started = time.time()

    with Scheduler(kubeconfig, clock=lambda: started + ahead_s):
        eventually(lambda: len(running_pods(work, "protected")) == 2, what="the job runs")
        path = create_disruption_budget(lab, eventually, "protected", min_available=2)
        work.create(pod("owner", 2, project="bob"))
        eventually(
            lambda: "stays: The disruption budget protected" in wait_message(work.pod("owner")),
            what="bob's pod names the budget",
        )
        assert len(running_pods(work, "protected")) == 2
        lab.plane.request("DELETE", path)
        ahead_s = 3600.0  # seconds: longer than any back-off
        eventually(lambda: work.node_of("owner"), what="bob has his GPUs")

    assert work.job("protected")["status"].get("failed", 0) == 0
