"""The service as a process over a cluster: it schedules and answers, one of several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from control_plane.lab import allow_jobs
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.client import Client
from runai.hub_service.errors import Unavailable

pytestmark = pytest.mark.kubernetes

TOKEN = "the-hubs-token"
PROJECTS = "projects: {vision: {quota: 1, members: [ana]}}"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/runai/leases/runai-scheduler"


class Service:
    """One candidate, at a port of its own."""

    def __init__(self, place: Path, rights: Path, namespace: str, port: int) -> None:
        place.mkdir()
        (place / "projects.yaml").write_text(PROJECTS)
        self.log = place / "log"
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB", "RUNAI"))},
            "KUBECONFIG": str(rights),
            "RUNAI_CLUSTER": "kubernetes",
            "RUNAI_DATA_DIR": str(place / "data"),
            "RUNAI_HUB_TOKEN": TOKEN,
            "RUNAI_JOBS_IMAGE": "example/train",
            "RUNAI_JOBS_NAMESPACE": namespace,
            "RUNAI_PROJECTS": str(place / "projects.yaml"),
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        }
        with self.log.open("ab") as log:
            command = [sys.executable, "-P", "-m", "runai.hub_service"]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}/services/runai/"
        self.client = Client(url, TOKEN, patience_s=60)
        self.impatient = Client(url, TOKEN, patience_s=0)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.client.close()
        self.impatient.close()

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def begin(lab, rights, free_port, tmp_path):
    allow_jobs(lab.plane, lab.namespace.name)
    lab.node("gpu-0", gpus=1)
    begun: list[Service] = []

    def another() -> Service:
        place = tmp_path / str(len(begun))
        begun.append(Service(place, rights, lab.namespace.name, free_port()))
        return begun[-1]

    yield another
    for service in begun:
        service.end()
    lab.forget_projects()
    lab.forget(LEASE)


def job(name: str) -> SubmitRequest:
    return SubmitRequest(name=name, owner="ana", command=["python", "train.py"], gpus=1)


def test_a_submitted_job_runs_and_the_next_waits_with_a_sentence(begin, lab, eventually):
    service = begin()
    service.client.submit(job("one"))
    service.client.submit(job("two"))
    eventually(lambda: service.client.workload("vision/one").state == "running")
    two = eventually(lambda: w if (w := service.client.workload("vision/two")).reason else None)

    assert (two.state, "1 of 1 GPU is in use" in two.reason.text) == ("queued", True)
    assert [n.name for n in service.client.nodes()] == ["gpu-0"]
    (pod,) = lab.namespace.pods()
    assert pod["metadata"]["labels"]["runai/workload"] == "one"

    service.client.delete("vision/one")
    eventually(lambda: service.client.workload("vision/two").state == "running")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["told", "killed"])
def test_the_next_service_goes_on_where_the_first_was(begin, eventually, number):
    first = begin()
    first.client.submit(job("one"))
    eventually(lambda: first.client.workload("vision/one").state == "running")
    second = begin()
    eventually(lambda: "waits until it leads" in second.log.read_text())
    with pytest.raises(Unavailable):  # whoever does not lead is not there
        second.impatient.overview()

    ended = first.stop(number)

    assert ended == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    assert second.client.workload("vision/one").state == "running"
