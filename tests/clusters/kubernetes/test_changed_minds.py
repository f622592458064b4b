"""Users change their Jobs while these are held: no change is overruled or forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes


class World:
    """One GPU, which a Job of patty's borrows until bob wants it."""

    def __init__(self, lab: Any, eventually: Any) -> None:
        self.lab, self.work, self._eventually = lab, lab.namespace, eventually
        lab.node("gpu-0", gpus=1)
        lab.project("bob", quota=1)
        lab.project("patty", quota=0)

    def runs(self, name: str) -> None:
        def found() -> bool:
            pods = self.work.pods(name)
            return any(p["status"]["phase"] == "Running" for p in pods if _stays(p))

        self._eventually(found, what=f"{name} runs")

    def is_held(self, name: str) -> bool:
        return "runai/held" in self.work.job(name)["metadata"].get("annotations", {})

    def is_paused_for_bob(self, name: str) -> None:
        self.work.create(pod("bobs", project="bob"))
        self._eventually(lambda: self.is_held(name), what=f"{name} is held")
        self._eventually(lambda: self.work.node_of("bobs"), what="bob's runs")

    def change(self, name: str, **spec: Any) -> None:
        path = f"/apis/batch/v1/namespaces/{self.work.name}/jobs/{name}"
        kind = "application/merge-patch+json"
        self.lab.plane.request("PATCH", path, {"spec": spec}, content_type=kind)


@pytest.fixture
def world(lab, eventually) -> World:
    return World(lab, eventually)


def _stays(found: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in found["metadata"]


def test_a_held_job_that_is_to_have_more_pods_at_once_is_not_forgotten(world, rights):
    """It is no single workload any more. It has no pods that could wait in its place."""
    made = job("more", project="patty")
    made["spec"] |= {"completions": 2}
    world.work.create(made)
    with Scheduler(rights):
        world.runs("more")
        world.is_paused_for_bob("more")
        world.change("more", parallelism=2)
        world.work.delete("bobs")
        world.runs("more")


def test_a_job_that_its_user_resumes_and_then_suspends_stays_so(world, rights, eventually):
    world.work.create(job("mine", project="patty"))
    with Scheduler(rights):
        world.runs("mine")
        world.is_paused_for_bob("mine")
        world.change("mine", suspend=False)
        eventually(lambda: not world.is_held("mine"), what="it is not held any more")
        eventually(lambda: world.work.pods("mine"), what="it has its pod again")
        world.change("mine", suspend=True)
        eventually(lambda: not world.work.pods("mine"), what="its pod is gone")
        world.work.delete("bobs")
        world.work.create(job("younger", project="patty"))
        world.runs("younger")
    assert world.work.job("mine")["spec"]["suspend"]
    assert not world.is_held("mine")
