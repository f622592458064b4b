"""A role older than the service: the service runs without the missing rights, and reports them."""

from __future__ import annotations

import logging

import pytest

from chart.rights import Right, grant, kubeconfig_without
from control_plane.kubeflow import kind_of_pytorch_jobs, pytorch_job, pytorch_jobs
from control_plane.objects import job
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.kubeflow, pytest.mark.timeout(400)]

ROLE = "ClusterRole runai-scheduler"


@pytest.mark.parametrize(
    "missing_right",
    [Right(ROLE, "customresourcedefinitions", "list"), Right(ROLE, "pytorchjobs", "list")],
    ids=str,
)
def test_scheduler_logs_a_missing_pytorch_right_once_and_uses_it_when_granted(
    lab, eventually, caplog, missing_right
):
    caplog.set_level(logging.WARNING, "runai.kubernetes")
    lab.node("gpu-0", gpus=1)
    lab.project("vision", quota=2)
    work = lab.namespace
    kubeconfig = kubeconfig_without(lab.plane, work.name, missing_right)

    def logged_warnings() -> list[str]:
        return [r.message for r in caplog.records if "PyTorchJobs are not scheduled" in r.message]

    def workload_ids() -> list[str]:
        return sorted(record.id for record in scheduler.call(scheduler.cluster.workloads()))

    with kind_of_pytorch_jobs(lab.plane), Scheduler(kubeconfig) as scheduler:
        training_job = pytorch_job("train", workers=1, labels={"runai/project": "vision"})
        lab.plane.request("POST", pytorch_jobs(work.name), training_job)
        for name in ("first", "second"):
            work.create(job(name, project="vision"))
            eventually(lambda name=name: bound(work, name), what=f"{name} runs")
            work.finish(work.pods(name)[0]["metadata"]["name"])
        eventually(logged_warnings, what="the warning is logged")
        assert len(logged_warnings()) == 1
        assert "runai doctor" in logged_warnings()[0]

        grant(lab.plane, kubeconfig, missing_right)

        train = f"vision/{work.name}.train"
        eventually(lambda: train in workload_ids(), within=90, what="the PyTorchJob is listed")
    assert len(logged_warnings()) == 1


def bound(work, name: str) -> bool:
    return any("nodeName" in pod["spec"] for pod in work.pods(name))
