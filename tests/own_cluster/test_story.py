"""Bob and Patty on a cluster of one's own: whole GPUs, parts of one, and a gang.

All of the chosen node's free GPUs are used for some seconds, by containers that do nothing.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from control_plane.objects import job, pod
from own_release import POOL, OwnRelease
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import device_variable
from waiting import eventually

pytestmark = [pytest.mark.own_cluster, pytest.mark.timeout(1800)]

IMAGE = os.environ.get("RUNAI_CLUSTER_IMAGE", "busybox")
RUNS = "echo sees $NVIDIA_VISIBLE_DEVICES; trap 'exit 0' TERM; tail -f /dev/null & wait"
WITHIN_S = 300
"""Images may have to be pulled."""


def session(name: str, project: str, gpus: int = 1, *, part: str = "") -> Any:
    notes = {"gpu-fraction": part} if part else {}
    made = pod(name, gpus, project=project, labels=POOL, annotations=notes)
    return _running(made, made["spec"])


def training(name: str, project: str, workers: int = 1) -> Any:
    made = job(name, project=project, labels=POOL, workers=workers, gang=workers > 1)
    return _running(made, made["spec"]["template"]["spec"])


def _running(made: Any, spec: Any) -> Any:
    spec |= {"terminationGracePeriodSeconds": 1}
    container: dict[str, Any] = {"image": IMAGE, "command": ["sh", "-c", RUNS]}
    if not spec["containers"][0]["resources"]["limits"]:
        container["env"] = [device_variable()]
    spec["containers"][0] |= container
    return made


def running(release: OwnRelease, name: str = "") -> list[str]:
    """Return the names of the running pods, or of a Job's."""
    return [
        found["metadata"]["name"]
        for found in release.work.pods(name)
        if found["status"]["phase"] == "Running" and "deletionTimestamp" not in found["metadata"]
    ]


def sees(release: OwnRelease, name: str) -> str:
    """Start a session with half a GPU; return the device that its container prints."""
    release.work.create(session(name, "vision", 0, part="0.5"))
    path = f"/api/v1/namespaces/{release.work.name}/pods/{name}/log"

    def log_text() -> str:
        return release.cluster.request("GET", path) if name in running(release) else ""

    line = eventually(log_text, within=WITHIN_S, what=f"{name} says what it sees")
    return line.removeprefix("sees").strip()


def test_quota_owner_reclaims_gpus_and_the_paused_job_resumes_afterwards(release: OwnRelease):
    release.project("bob", quota=1)
    release.project("patty", quota=release.gpus - 1)
    jobs = [f"training-{number}" for number in range(release.gpus)]
    for name in jobs:
        release.work.create(training(name, "patty"))
    eventually(lambda: len(running(release)) == release.gpus, within=WITHIN_S, what="all run")

    release.work.create(session("notebook", "bob"))
    eventually(lambda: "notebook" in running(release), within=WITHIN_S, what="bob's runs")
    (suspended,) = [name for name in jobs if release.work.job(name)["spec"]["suspend"]]
    described = release.cluster.kubectl("describe", "job", "-n", release.work.name, suspended)
    release.work.delete("notebook")
    eventually(lambda: running(release, suspended), within=WITHIN_S, what="the held one goes on")

    assert "bob" in described
    nodes = {release.work.node_of(name) for name in running(release)}
    assert nodes == {release.node}


def test_two_half_gpu_pods_share_a_device_and_a_third_pod_gets_a_second_device(release: OwnRelease):
    release.project("vision", quota=2)
    seen = [sees(release, name) for name in ("first", "second", "third")]

    assert seen[0] == seen[1] != seen[2]
    assert all(seen)


def test_gang_starts_all_pods_or_none(release: OwnRelease):
    release.project("vision", quota=release.gpus)
    release.work.create(session("before", "vision"))
    eventually(lambda: running(release), within=WITHIN_S, what="the session runs")
    release.work.create(training("gang", "vision", release.gpus))

    def all_explain_wait() -> bool:
        conditions = (p["status"].get("conditions", ()) for p in release.work.pods("gang"))
        explained = [c for of in conditions for c in of if c.get("message")]
        return len(explained) == release.gpus

    eventually(all_explain_wait, within=WITHIN_S, what="all of them say why they wait")
    assert not any(found["spec"].get("nodeName") for found in release.work.pods("gang"))
    release.work.delete("before")
    eventually(
        lambda: len(running(release, "gang")) == release.gpus, within=WITHIN_S, what="all run"
    )
