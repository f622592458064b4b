"""What the service needs its rights on Kubeflow's kind for, each in a cluster that has just got it.

Called by test_rights beside `acts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chart.acts import JOBS, SCHEDULER, Act, Stage
from chart.rights import Right
from control_plane.kubeflow import kind_of_pytorch_jobs, pytorch_job, pytorch_jobs

__all__ = ["KUBEFLOW_ACTS"]


async def sees_a_pytorch_job(stage: Stage) -> None:
    """Hear of the kind, list what there is of it, and see another one."""
    await stage.cluster.observe()
    with kind_of_pytorch_jobs(stage.lab.plane):
        pytorch = stage.cluster._jobs._pytorch
        await stage.until(lambda: pytorch.lists, "it has listed PyTorchJobs")
        _made(stage)
        key = f"{stage.lab.namespace.name}/train"
        await stage.until(lambda: key in pytorch.objects, "it sees the PyTorchJob")


async def knows_of_a_kind_that_is_there(stage: Stage) -> None:
    """Begin to look when the kind is there already."""
    with kind_of_pytorch_jobs(stage.lab.plane):
        await stage.cluster.observe()
        await stage.until(lambda: stage.cluster._jobs._pytorch.lists, "it has listed PyTorchJobs")


async def suspends_a_pytorch_job(stage: Stage) -> None:
    with kind_of_pytorch_jobs(stage.lab.plane):
        workload = await _known(stage)
        await stage.cluster.suspend(workload, by="ana")
        found = stage.lab.plane.request("GET", pytorch_jobs(stage.lab.namespace.name, "train"))
        assert found["spec"]["runPolicy"]["suspend"] is True


async def deletes_a_pytorch_job(stage: Stage) -> None:
    with kind_of_pytorch_jobs(stage.lab.plane):
        workload = await _known(stage)
        await stage.cluster.delete(workload, by="ana")
        found = stage.lab.plane.request("GET", pytorch_jobs(stage.lab.namespace.name))
        assert found["items"] == []


def _made(stage: Stage) -> dict[str, Any]:
    labels = {"runai/project": stage.project}
    job = pytorch_job("train", workers=1, labels=labels)
    made: dict[str, Any] = stage.lab.plane.request(
        "POST", pytorch_jobs(stage.lab.namespace.name), job
    )
    return made


async def _known(stage: Stage) -> str:
    uid = _made(stage)["metadata"]["uid"]
    await stage.until(lambda: uid in stage.cluster._jobs.by_uid(), "it sees the PyTorchJob")
    return f"{stage.project}/{stage.lab.namespace.name}.train"


KUBEFLOW_ACTS: Mapping[Right, Act] = {
    Right(SCHEDULER, "customresourcedefinitions", "list"): knows_of_a_kind_that_is_there,
    Right(SCHEDULER, "customresourcedefinitions", "watch"): sees_a_pytorch_job,
    Right(SCHEDULER, "pytorchjobs", "list"): sees_a_pytorch_job,
    Right(SCHEDULER, "pytorchjobs", "watch"): sees_a_pytorch_job,
    Right(SCHEDULER, "pytorchjobs", "patch"): suspends_a_pytorch_job,
    Right(JOBS, "pytorchjobs", "delete"): deletes_a_pytorch_job,
}
