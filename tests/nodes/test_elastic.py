"""An elastic job on real nodes: its container is started again on more GPUs, and on fewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nodes_hub import NodesHub
from nodes_lab import NodesLab
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import WorkloadDetail
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.slow, pytest.mark.timeout(600)]

# Prints its devices, exits on SIGTERM, and ends once a test creates /tmp/enough.
TRAINING = """
import os, pathlib, signal, sys, time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("sees", os.environ["NVIDIA_VISIBLE_DEVICES"], flush=True)
while not pathlib.Path("/tmp/enough").exists():
    time.sleep(0.05)
"""
JOBS = "/apis/batch/v1/namespaces/runai/jobs"
PODS = "/api/v1/namespaces/runai/pods"
TIMEOUT_S = 180
"""A job that was just started is left alone for half a minute before it grows."""
BOTH_DEVICES = {"GPU-0-0", "GPU-0-1"}


class ElasticPodScenario:
    """A node of two GPUs, and a job of bob's that runs on as many as are free."""

    def __init__(self, lab: NodesLab, service: Client) -> None:
        self.lab, self.service = lab, service

    def submit(self, name: str, owner: str, gpus: int, *, elastic: bool = False) -> None:
        fields: Any = {"name": name, "owner": owner, "command": ["python", "-c", TRAINING]}
        self.service.submit(SubmitRequest(**fields, gpus=gpus, elastic=elastic, grace_seconds=5))

    def wait_for_state(self, name: str, state: str) -> WorkloadDetail:
        def is_in_state() -> bool:
            found = self.service.workload(name)
            assert found.state == state, found.reason
            return True

        eventually(is_in_state, within=TIMEOUT_S, what=f"{name} is {state}")
        return self.service.workload(name)

    def wait_for_devices(self, name: str, count: int) -> set[str]:
        """Wait until a job's container prints this number of devices; return them."""

        def found() -> set[str]:
            lines = [line.text for line in self.service.logs(name)]
            seen = {tuple(line.split()[1].split(",")) for line in lines if line.startswith("sees")}
            return next((set(devices) for devices in seen if len(devices) == count), set())

        return eventually(found, within=TIMEOUT_S, what=f"{name} prints {count} devices")

    def finish(self, name: str) -> None:
        selected = f"job-name={name.replace('/', '-')}"
        found = self.lab.plane.request("GET", f"{PODS}?labelSelector={selected}")["items"]
        (pod,) = (p["metadata"]["name"] for p in found if p["status"]["phase"] == "Running")
        self.lab.plane.kubectl("exec", "-n", "runai", pod, "--", "touch", "/tmp/enough")


@pytest.fixture
def scenario(lab: NodesLab, service: Client, hub: NodesHub) -> Iterator[ElasticPodScenario]:
    """Start the hub too: only its users can submit."""
    for name in ("bob", "patty"):
        lab.seen_project(service, name, quota=1, members=[name])
    with lab.cordoned("node-1"):
        yield ElasticPodScenario(lab, service)
        lab.plane.request("DELETE", JOBS, {"propagationPolicy": "Background"})
        path = f"{PODS}?labelSelector=batch.kubernetes.io/job-name"
        eventually(lambda: not lab.plane.request("GET", path)["items"], what="all jobs are deleted")


def test_elastic_job_grows_onto_a_freed_gpu_and_returns_it_to_its_owner(
    scenario: ElasticPodScenario,
):
    scenario.submit("other", "patty", 1)
    scenario.wait_for_state("patty/other", "running")
    scenario.submit("elastic", "bob", 2, elastic=True)
    first_device = scenario.wait_for_devices("bob/elastic", 1)

    scenario.finish("patty/other")
    assert scenario.wait_for_devices("bob/elastic", 2) == BOTH_DEVICES

    scenario.submit("owner", "patty", 1)
    scenario.wait_for_state("patty/owner", "running")
    last_device = scenario.wait_for_devices("bob/elastic", 1)
    scenario.finish("bob/elastic")
    job = scenario.wait_for_state("bob/elastic", "succeeded")
    scenario.finish("patty/owner")
    scenario.wait_for_state("patty/owner", "succeeded")

    assert first_device < BOTH_DEVICES
    assert last_device < BOTH_DEVICES
    assert job.elastic is not None
    assert job.failures == 0
    assert job.pauses == 0
    assert job.elastic.resizes == 2  # to two devices, and back to one
