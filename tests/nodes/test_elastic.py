"""An elastic job on real nodes: its container is started again on more GPUs, and on fewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nodes_hub import NodesHub
from nodes_lab import NodesLab
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import SubmitRequest, WorkloadDetail
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
PATIENCE_S = 180
"""A job that was just started is left alone for half a minute before it grows."""
BOTH = {"GPU-0-0", "GPU-0-1"}


class ElasticPodScenario:
    """A node of two GPUs, and a job of bob's that runs on as many as are free."""

    def __init__(self, lab: NodesLab, service: Client) -> None:
        self.lab, self.service = lab, service

    def submit(self, name: str, owner: str, gpus: int, *, elastic: bool = False) -> None:
        fields: Any = {"name": name, "owner": owner, "command": ["python", "-c", TRAINING]}
        self.service.submit(SubmitRequest(**fields, gpus=gpus, elastic=elastic, grace_seconds=5))

    def until(self, name: str, state: str) -> WorkloadDetail:
        def there() -> bool:
            found = self.service.workload(name)
            assert found.state == state, found.reason
            return True

        eventually(there, within=PATIENCE_S, what=f"{name} is {state}")
        return self.service.workload(name)

    def sees(self, name: str, count: int) -> set[str]:
        """Wait until a job's container prints so many devices; return them."""

        def found() -> set[str]:
            lines = [line.text for line in self.service.logs(name)]
            seen = {tuple(line.split()[1].split(",")) for line in lines if line.startswith("sees")}
            return next((set(devices) for devices in seen if len(devices) == count), set())

        return eventually(found, within=PATIENCE_S, what=f"{name} sees {count}")

    def finish(self, name: str) -> None:
        selected = f"job-name={name.replace('/', '-')}"
        found = self.lab.plane.request("GET", f"{PODS}?labelSelector={selected}")["items"]
        (pod,) = (p["metadata"]["name"] for p in found if p["status"]["phase"] == "Running")
        self.lab.plane.kubectl("exec", "-n", "runai", pod, "--", "touch", "/tmp/enough")


@pytest.fixture
def scenario(lab: NodesLab, service: Client, hub: NodesHub) -> Iterator[ElasticPodScenario]:
    """Only users of the hub can submit."""
    for name in ("bob", "patty"):
        lab.seen_project(service, name, quota=1, members=[name])
    with lab.cordoned("node-1"):
        yield ElasticPodScenario(lab, service)
        lab.plane.request("DELETE", JOBS, {"propagationPolicy": "Background"})
        path = f"{PODS}?labelSelector=batch.kubernetes.io/job-name"
        eventually(lambda: not lab.plane.request("GET", path)["items"], what="their jobs are gone")


def test_elastic_job_grows_onto_a_freed_gpu_and_returns_it_to_its_owner(
    scenario: ElasticPodScenario,
):
    scenario.submit("other", "patty", 1)
    scenario.until("patty/other", "running")
    scenario.submit("e", "bob", 2, elastic=True)
    first = scenario.sees("bob/e", 1)

    scenario.finish("patty/other")
    assert scenario.sees("bob/e", 2) == BOTH

    scenario.submit("owner", "patty", 1)
    scenario.until("patty/owner", "running")
    last = scenario.sees("bob/e", 1)
    scenario.finish("bob/e")
    done = scenario.until("bob/e", "succeeded")
    scenario.finish("patty/owner")
    scenario.until("patty/owner", "succeeded")

    assert first < BOTH
    assert last < BOTH
    assert done.elastic is not None
    assert (done.failures, done.pauses, done.elastic.resizes) == (0, 0, 2)
