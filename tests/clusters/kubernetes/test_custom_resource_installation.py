"""Custom resources of other operators: a cluster may lack them, and they may be installed later.

Neither is a fault: the kinds are watched as soon as they exist.
"""

from __future__ import annotations

import logging

import pytest

from control_plane.kubeflow import kind_of_pytorch_jobs, pytorch_job, pytorch_jobs
from control_plane.objects import job
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.kubeflow, pytest.mark.timeout(400)]


def test_pytorch_jobs_are_watched_only_while_their_kind_is_installed(
    lab, kubeconfig, eventually, caplog
):
    caplog.set_level(logging.WARNING)
    lab.node("gpu-0", gpus=2)
    lab.project("vision", quota=2)
    work = lab.namespace

    def workload_ids() -> list[str]:
        return sorted(record.id for record in scheduler.call(scheduler.cluster.workloads()))

    with Scheduler(kubeconfig) as scheduler:
        work.create(job("plain", project="vision"))
        eventually(
            lambda: any("nodeName" in p["spec"] for p in work.pods()), what="the plain job runs"
        )
        assert scheduler.cluster.cache.informers.jobs._pytorch.lists == 0
        assert not caplog.records
        plain, train = f"vision/{work.name}.plain", f"vision/{work.name}.train"
        for turn in range(2):  # installed and removed twice
            with kind_of_pytorch_jobs(lab.plane):
                training_job = pytorch_job("train", workers=1, labels={"runai/project": "vision"})
                lab.plane.request("POST", pytorch_jobs(work.name), training_job)
                eventually(
                    lambda: workload_ids() == [plain, train],
                    within=90,
                    what=f"it is listed, turn {turn}",
                )
            eventually(lambda: workload_ids() == [plain], what=f"the pod is gone, turn {turn}")
        work.create(job("after", project="vision"))
        eventually(
            lambda: len([p for p in work.pods() if "nodeName" in p["spec"]]) == 2,
            what="the second plain job runs",
        )
