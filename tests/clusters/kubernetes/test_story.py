"""Bob and Patty on Kubernetes: idle GPUs are lent, and come back to their owner at once."""

from __future__ import annotations

import pytest

from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]


def test_a_session_runs_on_the_node_that_has_a_gpu(lab, rights, eventually):
    lab.node("gpu-0", gpus=2)
    lab.node("cpu-0")
    lab.project("vision", quota=1)
    lab.namespace.create(pod("notebook", project="vision"))

    with Scheduler(rights):
        eventually(
            lambda: lab.namespace.pod("notebook")["status"]["phase"] == "Running",
            what="the notebook runs",
        )

    assert lab.namespace.node_of("notebook") == "gpu-0"


def test_bob_lends_to_patty_and_gets_back_what_is_his(lab, rights, eventually):
    lab.node("gpu-0", gpus=2)
    lab.project("bob", quota=1)
    lab.project("patty", quota=1)
    work = lab.namespace
    for name in ("first", "second"):
        work.create(job(name, project="patty"))

    with Scheduler(rights):
        eventually(lambda: sum("nodeName" in p["spec"] for p in work.pods()) == 2, what="both run")
        before = {p["metadata"]["uid"] for p in work.pods()}
        work.create(pod("bobs-notebook", project="bob"))
        eventually(lambda: work.node_of("bobs-notebook"), what="bob has his GPU")
        held = eventually(
            lambda: next((j for j in ("first", "second") if work.job(j)["spec"]["suspend"]), ""),
            what="one of the jobs is held",
        )
        described = eventually(
            lambda: text if "Waiting" in (text := _described(lab, held)) else None,
            what="it says why",
        )
        eventually(
            lambda: any("bob" in sentence for sentence in _preempted(lab)), what="its pod says who"
        )

    assert "patty holds 1 of its fair share of 1 GPU" in described
    bound = {p["metadata"]["uid"] for p in work.pods() if "nodeName" in p["spec"] and _stays(p)}
    assert len(bound) == 2
    assert len(bound & before) == 1


def _stays(found) -> bool:
    """Tell whether it is not leaving: its Job's controller may not have counted it yet."""
    return "deletionTimestamp" not in found["metadata"]


def _described(lab, job: str) -> str:
    text: str = lab.plane.kubectl("describe", "job", "-n", lab.namespace.name, job)
    return text


def _preempted(lab) -> list[str]:
    events = lab.plane.request("GET", f"/api/v1/namespaces/{lab.namespace.name}/events")["items"]
    return [event["message"] for event in events if event["reason"] == "Preempted"]
