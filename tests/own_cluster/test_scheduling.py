"""Bob and Patty on a cluster of one's own: whole GPUs, parts of one, and a gang.

All of the chosen node's free GPUs are used for some seconds, by containers that do nothing.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from control_plane.objects import job, pod, printed_devices, printing_devices
from own_release import POOL, OwnRelease
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import device_variable
from waiting import eventually

pytestmark = [pytest.mark.own_cluster, pytest.mark.timeout(1800)]

POD_IMAGE = os.environ.get("RUNAI_CLUSTER_IMAGE", "busybox")
TIMEOUT_S = 300
"""Images may have to be pulled."""


def session_pod(name: str, project: str, gpus: int = 1, *, part: str = "") -> Any:
    annotations = {"gpu-fraction": part} if part else {}
    manifest = pod(name, gpus, project=project, labels=POOL, annotations=annotations)
    if not gpus:
        manifest["spec"]["containers"][0]["env"] = [device_variable()]
    return printing_devices(manifest, POD_IMAGE)


def training_job(name: str, project: str, workers: int = 1) -> Any:
    manifest = job(name, project=project, labels=POOL, workers=workers, gang=workers > 1)
    return printing_devices(manifest, POD_IMAGE)


def running_pods(release: OwnRelease, name: str = "") -> list[str]:
    """Return the names of the running pods, or of a Job's."""
    return [
        found["metadata"]["name"]
        for found in release.work.pods(name)
        if found["status"]["phase"] == "Running" and "deletionTimestamp" not in found["metadata"]
    ]


def device_of_new_session(release: OwnRelease, name: str) -> str:
    """Start a session with half a GPU; return the device that its container prints."""
    release.work.create(session_pod(name, "vision", 0, part="0.5"))
    path = f"/api/v1/namespaces/{release.work.name}/pods/{name}/log"

    def log_text() -> str:
        return release.cluster.request("GET", path) if name in running_pods(release) else ""

    return printed_devices(eventually(log_text, within=TIMEOUT_S, what=f"{name} prints its device"))


def test_quota_owner_reclaims_gpus_and_the_paused_job_resumes_afterwards(release: OwnRelease):
    release.project("bob", quota=1)
    release.project("patty", quota=release.gpus - 1)
    jobs = [f"training-{number}" for number in range(release.gpus)]
    for name in jobs:
        release.work.create(training_job(name, "patty"))
    eventually(
        lambda: len(running_pods(release)) == release.gpus,
        within=TIMEOUT_S,
        what="all GPUs are in use",
    )

    release.work.create(session_pod("notebook", "bob"))
    eventually(
        lambda: "notebook" in running_pods(release), within=TIMEOUT_S, what="bob's session runs"
    )
    (suspended_job,) = [name for name in jobs if release.work.job(name)["spec"]["suspend"]]
    description = release.cluster.kubectl("describe", "job", "-n", release.work.name, suspended_job)
    release.work.delete("notebook")
    eventually(
        lambda: running_pods(release, suspended_job),
        within=TIMEOUT_S,
        what="the suspended job runs again",
    )

    assert "bob" in description
    nodes = {release.work.node_of(name) for name in running_pods(release)}
    assert nodes == {release.node}


def test_two_half_gpu_pods_share_a_device_and_a_third_pod_gets_a_second_device(release: OwnRelease):
    release.project("vision", quota=2)
    devices = [device_of_new_session(release, name) for name in ("first", "second", "third")]

    assert devices[0] == devices[1] != devices[2]
    assert all(devices)


def test_gang_starts_all_pods_or_none(release: OwnRelease):
    release.project("vision", quota=release.gpus)
    release.work.create(session_pod("before", "vision"))  # one GPU less than the gang needs
    eventually(lambda: running_pods(release), within=TIMEOUT_S, what="the session runs")
    release.work.create(training_job("gang", "vision", release.gpus))

    def all_explain_wait() -> bool:
        conditions = (p["status"].get("conditions", ()) for p in release.work.pods("gang"))
        explanations = [c for of_pod in conditions for c in of_pod if c.get("message")]
        return len(explanations) == release.gpus

    eventually(all_explain_wait, within=TIMEOUT_S, what="all pods have a wait reason")
    assert not any(found["spec"].get("nodeName") for found in release.work.pods("gang"))
    release.work.delete("before")
    eventually(
        lambda: len(running_pods(release, "gang")) == release.gpus,
        within=TIMEOUT_S,
        what="all GPUs are in use",
    )
