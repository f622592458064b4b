"""A bound pod that its kubelet rejects: its Job creates it again, and the reason is reported.

The kubelet has the last word about devices: a pod bound past all schedulers may have been faster.
`plugin.pods_to_reject` simulates it, by the same request that kubelets make.
"""

from __future__ import annotations

import time

import pytest

from clusters.kubernetes.gpu_sharing import events
from clusters.kubernetes.test_pdb_backoff import running_pods
from control_plane.lab import allow_jobs
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU

pytestmark = pytest.mark.kubernetes

REASON = "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable"


def conditions(found) -> dict[str, str]:
    return {c["type"]: c.get("reason", "") for c in found["status"].get("conditions", ())}


@pytest.mark.parametrize("kind", ["submitted", "foreign"])
def test_kubelet_rejected_pod_of_a_job_is_recreated_without_a_job_failure(
    two_gpus, kubeconfig, plugin, until, kind
):
    work = two_gpus.namespace
    allow_jobs(two_gpus.plane, work.name)
    plugin.pods_to_reject = 1  # the kubelet rejects the next pod
    name = "vision-turned" if kind == "submitted" else "turned"

    with Scheduler(kubeconfig, namespace=work.name) as scheduler:
        if kind == "submitted":
            spec = WorkloadSpec(
                "vision", "turned", "ana", "job", ("train",), gpus=WHOLE_GPU, image="example/train"
            )
            scheduler.call(scheduler.cluster.submit([spec]))
        else:
            foreign_job = job(name, project="vision")
            del foreign_job["spec"]["podFailurePolicy"], foreign_job["spec"]["podReplacementPolicy"]
            work.create(foreign_job)  # a single failure would end it: backoffLimit is 0
        (rejected_pod,) = until(
            lambda: [p for p in work.pods(name) if p["status"].get("phase") == "Failed"],
            what="the pod is rejected",
        )
        until(
            lambda: running_pods(work, name) and not plugin.pods_to_reject, what="its next pod runs"
        )
        messages = until(lambda: events(work, "TurnedAway"), what="an Event is sent")
        status = work.job(name)["status"]

    assert conditions(rejected_pod)["DisruptionTarget"] == "TurnedAway"
    assert status.get("failed", 0) == 0
    assert not any(c["type"] == "Failed" for c in status.get("conditions", ()))
    assert f"gpu-0 would not take it ({REASON}); its Job makes it again" in messages[0]


def test_kubelet_rejected_session_ends_with_a_reason_and_frees_its_devices(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    plugin.pods_to_reject = 1  # the kubelet rejects the next pod

    with Scheduler(kubeconfig) as scheduler:
        work.create(pod("both", 2, project="vision"))
        messages = until(lambda: events(work, "TurnedAway"), what="an Event is sent")

        def ended() -> WorkloadRecord | None:
            # kwok may not know of it yet, and may report once more that the pod runs.
            found = scheduler.call(scheduler.cluster.workload(f"vision/{work.name}.both"))
            return found if found.state == "ended" else None

        record = until(ended, what="the pod has ended")
        work.create(pod("next", 2, project="vision"))
        until(lambda: running_pods(work) == ["next"], what="the next one has the devices")

    assert messages == [f"gpu-0 would not take it ({REASON}); nobody makes it again: start it anew"]
    assert record.reason is not None
    assert record.reason.text == messages[0]


def test_node_that_rejected_a_pod_gets_no_new_pod_for_some_seconds(
    two_gpus, kubeconfig, plugin, until
):
    """No new pod is placed on it, though its devices look free."""
    work = two_gpus.namespace
    ahead_s = 0.0
    plugin.pods_to_reject = 1  # the kubelet rejects the next pod

    def clock() -> float:
        return started + ahead_s

    started = time.time()
    with Scheduler(kubeconfig, clock=clock):
        work.create(pod("first", 1, project="vision"))
        until(lambda: events(work, "TurnedAway"), what="the pod is rejected")
        work.create(pod("second", 1, project="vision"))
        until(lambda: "PodScheduled" in conditions(work.pod("second")), what="the second pod waits")
        assert "second" not in running_pods(work)
        ahead_s = 6.0  # the node's backoff is 5 s
        until(lambda: running_pods(work) == ["second"], what="the second pod runs")
