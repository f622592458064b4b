"""A device plugin restarts, or a GPU in use breaks: what a claim then costs on a real API server.

Only allocatable changes, as the kubelet writes it; the pods run on.
"""

from __future__ import annotations

import pytest

from clusters.kubernetes.gpu_sharing import wait_message
from clusters.kubernetes.test_pdb_backoff import running_pods
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler
from runai.hub_service.controller.controller import Cycle

pytestmark = pytest.mark.kubernetes


def set_allocatable_gpus(lab, gpus: int) -> None:
    """Let the node offer so many of its GPUs."""
    change = {"status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}
    path = "/api/v1/nodes/gpu-0/status"
    lab.plane.request("PATCH", path, change, content_type="application/merge-patch+json")


def lacks_gpus(cycle: Cycle) -> bool:
    return any(node.loss for node in cycle.snapshot.nodes)


def paused_jobs(work) -> list[str]:
    """Return the borrowing jobs that were suspended at any time."""
    jobs = [work.job(f"lent-{i}") for i in range(4)]
    return [
        j["metadata"]["name"]
        for j in jobs
        if j["metadata"].get("annotations", {}).get("runai/pauses")
    ]


@pytest.mark.parametrize("offered_gpus", [0, 3])
def test_claimant_pauses_one_job_and_none_while_the_node_offers_no_gpu(
    lab, kubeconfig, eventually, offered_gpus
):
    lab.node("gpu-0", gpus=4)
    lab.project("owners", quota=4)
    lab.project("guests")
    work = lab.namespace
    for index in range(4):
        work.create(job(f"lent-{index}", project="guests"))

    with Scheduler(kubeconfig) as scheduler:
        eventually(lambda: len(running_pods(work)) == 4, what="all GPUs are lent")
        set_allocatable_gpus(lab, offered_gpus)
        eventually(lambda: any(map(lacks_gpus, scheduler.cycles)), what="the node lacks GPUs")
        work.create(pod("claim", 1, project="owners"))
        if not offered_gpus:
            message = eventually(
                lambda: wait_message(work.pod("claim")), what="the claim has a reason to wait"
            )
            assert "node gpu-0 offers 0 of 4 GPUs since " in message
            cycles = len(scheduler.cycles)
            work.create(job("late", project="guests"))  # the cause of a further cycle
            eventually(lambda: len(scheduler.cycles) > cycles, what="the scheduler decides again")
            assert paused_jobs(work) == []
            set_allocatable_gpus(lab, 4)
        eventually(lambda: "claim" in running_pods(work), what="the claim runs")

    assert len(paused_jobs(work)) == 1
