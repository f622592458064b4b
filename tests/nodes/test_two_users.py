"""Bob and Patty on real nodes: containers run, are paused and resumed, as their logs confirm.

The chart is installed by Helm, its service runs in a pod, and the jobs are submitted to its API.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from nodes_hub import NodesHub
from nodes_lab import NodesLab
from runai.hub_service.client import Client
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(300)]

# Prints its device, exits on SIGTERM, and ends once a test creates /tmp/enough.
TRAINING = """
import os, pathlib, signal, sys, time

def exit_on_term(*_):
    print("paused", flush=True)
    sys.exit(143)

signal.signal(signal.SIGTERM, exit_on_term)
print("trains on", os.environ["NVIDIA_VISIBLE_DEVICES"], flush=True)
while not pathlib.Path("/tmp/enough").exists():
    time.sleep(0.05)
print("trained", flush=True)
"""
JOBS = "/apis/batch/v1/namespaces/runai/jobs"
PODS = "/api/v1/namespaces/runai/pods"


class TwoUsersScenario:
    """The actions of the two users."""

    def __init__(self, lab: NodesLab, service: Client) -> None:
        self.lab = lab
        self.plane = lab.plane
        self.service = service

    def submit(self, project: str, count: int) -> list[str]:
        """Submit some trainings of one GPU; return their names."""
        names = [f"{project}/job-{number}" for number in range(count)]
        for name in names:
            short = name.partition("/")[2]
            command = ["python", "-c", TRAINING]
            fields = {"name": short, "owner": project, "command": command, "gpus": 1}
            self.service.submit(SubmitRequest(**fields, grace_seconds=5))  # type: ignore[arg-type]
        return names

    def jobs_in(self, *states: str) -> set[str]:
        """Return the jobs in one of these states now."""
        return {w.id for w in self.service.workloads() if w.kind == "job" and w.state in states}

    def finish(self, name: str) -> None:
        """Let a training end by itself, by a file in its container."""
        selected = f"job-name={name.replace('/', '-')}"
        found = self.plane.request("GET", f"{PODS}?labelSelector={selected}")["items"]
        (pod,) = (p["metadata"]["name"] for p in found if p["status"]["phase"] == "Running")
        self.plane.kubectl("exec", "-n", "runai", pod, "--", "touch", "/tmp/enough")

    def environment_of(self, pod: str) -> dict[str, str]:
        """Return the environment of a pod's program, as seen inside the container."""
        environ = self.plane.kubectl("exec", "-n", "runai", pod, "--", "cat", "/proc/1/environ")
        return dict(word.split("=", 1) for word in environ.split("\0") if word)


@pytest.fixture
def scenario(lab: NodesLab, service: Client, hub: NodesHub) -> Iterator[TwoUsersScenario]:
    for name in ("bob", "patty"):
        lab.seen_project(service, name, quota=2, members=[name])
    yield TwoUsersScenario(lab, service)
    lab.plane.request("DELETE", JOBS, {"propagationPolicy": "Background"})
    path = f"{PODS}?labelSelector=batch.kubernetes.io/job-name"
    eventually(lambda: not lab.plane.request("GET", path)["items"], what="their jobs are gone")


def follow_log(service: Client, name: str, into: list[str]) -> threading.Thread:
    """Read a job's log until its end, like `runai logs -f`."""

    def read() -> None:
        into.extend(f"{line.attempt}: {line.text}" for line in service.logs(name, follow=True))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    return reading


def test_bobs_jobs_on_pattys_quota_are_paused_and_resumed(scenario: TwoUsersScenario):
    bob_jobs = scenario.submit("bob", 4)
    eventually(lambda: scenario.jobs_in("running") == set(bob_jobs), what="all four of Bob's run")
    logs: dict[str, list[str]] = {name: [] for name in bob_jobs}
    readers = [follow_log(scenario.service, name, lines) for name, lines in logs.items()]

    patty_jobs = scenario.submit("patty", 2)
    eventually(lambda: set(patty_jobs) <= scenario.jobs_in("running"), what="Patty's run")
    eventually(lambda: len(scenario.jobs_in("paused")) == 2, what="two of Bob's are paused")
    paused = scenario.jobs_in("paused")
    assert paused < set(bob_jobs)
    for name in paused:
        reason = scenario.service.workload(name).reason
        assert reason is not None
        assert "bob" in reason.text
    records = [scenario.lab.kubelet_allocations(node) for node in (0, 1)]
    allocated = [device for pods in records for devices in pods.values() for device in devices]
    assert sorted(allocated) == ["GPU-0-0", "GPU-0-1", "GPU-1-0", "GPU-1-1"]

    for name in patty_jobs:
        scenario.finish(name)
    eventually(lambda: scenario.jobs_in("running") == set(bob_jobs), what="Bob's run again")
    for name in bob_jobs:
        scenario.finish(name)
    all_jobs = {*bob_jobs, *patty_jobs}
    eventually(lambda: scenario.jobs_in("succeeded") == all_jobs, what="all have succeeded")

    for reader in readers:
        reader.join()
    for name, lines in logs.items():
        attempts = 2 if name in paused else 1
        messages = [line.partition(": ")[2].partition(" on ")[0] for line in lines]
        assert messages == ["trains", "paused"] * (attempts - 1) + ["trains", "trained"], lines
        assert scenario.service.workload(name).attempts == attempts


def test_notebooks_of_two_users_share_a_device_with_memory_limits(
    scenario: TwoUsersScenario, hub: NodesHub
):
    """KubeSpawner's servers, started by JupyterHub, in containers of the nodes."""
    try:
        for user in ("bob", "patty"):
            hub.spawn(user, project=user, gpus="0.5").raise_for_status()
        for user in ("bob", "patty"):
            hub.wait_ready(user)

        variables = {user: scenario.environment_of(f"jupyter-{user}") for user in ("bob", "patty")}

        devices = {env["NVIDIA_VISIBLE_DEVICES"] for env in variables.values()}
        assert devices == set(scenario.lab.reservations())
        assert len(devices) == 1
        assert {env["RUNAI_PROJECT"] for env in variables.values()} == {"bob", "patty"}
        # Without a label of the devices' memory, the agents' count applies: half of 15,900 MiB.
        limits_mib = {env["RUNAI_GPU_MEMORY_LIMITS_MIB"] for env in variables.values()}
        assert limits_mib == {"7950"}

        def are_listed() -> bool:
            # The hub may see that they are ready before the service does.
            found = {w.user: w.state for w in scenario.service.workloads()}
            assert found == {"bob": "running", "patty": "running"}
            return True

        eventually(are_listed, what="the service lists both as running")
    finally:
        for user in ("bob", "patty"):
            hub.stop_server(user)
