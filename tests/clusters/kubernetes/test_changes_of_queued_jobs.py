"""Users change their Jobs while these are queued: no change is overruled or forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes


class BorrowedGpu:
    """One GPU, which a Job of patty's borrows until bob wants it."""

    def __init__(self, lab: Any, eventually: Any) -> None:
        self.lab, self.work, self._eventually = lab, lab.namespace, eventually
        lab.node("gpu-0", gpus=1)
        lab.project("bob", quota=1)
        lab.project("patty", quota=0)

    def wait_until_runs(self, name: str) -> None:
        def found() -> bool:
            pods = self.work.pods(name)
            return any(p["status"]["phase"] == "Running" for p in pods if _is_not_terminating(p))

        self._eventually(found, what=f"{name} runs")

    def is_queued(self, name: str) -> bool:
        return "runai/held" in self.work.job(name)["metadata"].get("annotations", {})

    def pause_for_bob(self, name: str) -> None:
        self.work.create(pod("bobs", project="bob"))
        self._eventually(lambda: self.is_queued(name), what=f"{name} is queued")
        self._eventually(lambda: self.work.node_of("bobs"), what="bob's pod runs")

    def change(self, name: str, **spec: Any) -> None:
        path = f"/apis/batch/v1/namespaces/{self.work.name}/jobs/{name}"
        kind = "application/merge-patch+json"
        self.lab.plane.request("PATCH", path, {"spec": spec}, content_type=kind)


@pytest.fixture
def borrowed_gpu(lab, eventually) -> BorrowedGpu:
    return BorrowedGpu(lab, eventually)


def _is_not_terminating(found: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in found["metadata"]


def test_queued_job_with_raised_parallelism_runs_when_its_gpu_is_free(borrowed_gpu, kubeconfig):
    """The Job is no single workload any more, and has no pods that could wait in its place."""
    indexed_job = job("more", project="patty")
    indexed_job["spec"] |= {"completions": 2}
    borrowed_gpu.work.create(indexed_job)
    with Scheduler(kubeconfig):
        borrowed_gpu.wait_until_runs("more")
        borrowed_gpu.pause_for_bob("more")
        borrowed_gpu.change("more", parallelism=2)
        borrowed_gpu.work.delete("bobs")
        borrowed_gpu.wait_until_runs("more")


def test_job_suspended_by_its_user_after_a_resume_stays_suspended(
    borrowed_gpu, kubeconfig, eventually
):
    borrowed_gpu.work.create(job("mine", project="patty"))
    with Scheduler(kubeconfig):
        borrowed_gpu.wait_until_runs("mine")
        borrowed_gpu.pause_for_bob("mine")
        borrowed_gpu.change("mine", suspend=False)
        eventually(lambda: not borrowed_gpu.is_queued("mine"), what="it left the queue")
        eventually(lambda: borrowed_gpu.work.pods("mine"), what="the Job has its pod again")
        borrowed_gpu.change("mine", suspend=True)
        eventually(lambda: not borrowed_gpu.work.pods("mine"), what="the Job's pod is gone")
        borrowed_gpu.work.delete("bobs")
        borrowed_gpu.work.create(job("younger", project="patty"))
        borrowed_gpu.wait_until_runs("younger")
    assert borrowed_gpu.work.job("mine")["spec"]["suspend"]
    assert not borrowed_gpu.is_queued("mine")
