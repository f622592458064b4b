"""The service as a process of its own, on a data directory of its own, without a JupyterHub."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import WorkloadDetail
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

TOKEN = "the-hubs-token"
STARTS_S = 120
"""A busy machine may import for half a minute, and a Lease may have to expire."""
PROJECTS = "projects: {vision: {quota: 2, members: [ana]}}"


class Service:
    """One data directory and the service that is running on it.

    `python` is the interpreter of the next start: another's is another installation.
    """

    def __init__(
        self,
        directory: Path,
        port: int,
        projects: str = PROJECTS,
        settings: Mapping[str, str] = {"RUNAI_SIMULATE": "2"},
    ) -> None:
        self.directory = directory
        self.python: str | Path = sys.executable
        self.log = directory / "service.log"
        (directory / "projects.yaml").write_text(projects)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB", "RUNAI"))},
            "RUNAI_DATA_DIR": str(directory / "data"),
            "RUNAI_HUB_TOKEN": TOKEN,
            "RUNAI_PROJECTS": str(directory / "projects.yaml"),
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
            **settings,
        }
        self.client = Client(f"http://127.0.0.1:{port}/services/runai/", TOKEN, patience_s=120)
        self.process: subprocess.Popen[bytes] | None = None

    def popen(self, *before: str, **environment: str) -> subprocess.Popen[bytes]:
        command = [*before, self.python, "-P", "-m", "runai.hub_service"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, env=self.environment | environment, stdout=log, stderr=log
            )

    def start(self) -> None:
        self.process = self.popen()
        self.client.overview()

    def stop(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(90)

    def end(self) -> None:
        """Kill the service, and leave its jobs."""
        self.stop(signal.SIGKILL)
        self.client.close()

    def agent(self) -> psutil.Process | None:
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):  # it has just ended
                if "runai.hub_service.agent" in child.cmdline():
                    return child
        return None

    def submit(self, name: str, program: str) -> None:
        self.client.submit(
            SubmitRequest(
                name=name,
                owner="ana",
                gpus=1,
                command=[sys.executable, "-c", program],
                grace_seconds=1,
            )
        )

    def until(self, workload: str, *states: str) -> WorkloadDetail:
        seen = self.client.workload(workload)
        while seen.state not in states:
            seen = self.client.wait(workload, seen.version, 10)
        return seen

    def clean(self) -> None:
        """Leave no process behind: neither jobs nor the service."""
        if self.process is None or self.process.poll() is not None:
            if not any((self.directory / "data/jobs").glob("*/*")):
                self.client.close()
                return
            self.start()
        for workload in self.client.workloads():
            self.client.delete(workload.id)
        eventually(lambda: self.client.workloads() == [])
        self.stop(signal.SIGTERM)
        self.client.close()


def kubernetes_service(
    place: Path, kubeconfig: Path, namespace: str, port: int, **settings: str
) -> Service:
    """Start a service over a cluster, which becomes the leader or waits to become it."""
    place.mkdir()
    projects = "projects: {vision: {quota: 1, members: [ana]}}"
    cluster = {
        "KUBECONFIG": str(kubeconfig),
        "RUNAI_CLUSTER": "kubernetes",
        "RUNAI_JOBS_IMAGE": "example/train",
        "RUNAI_JOBS_NAMESPACE": namespace,
    }
    service = Service(place, port, projects, cluster | settings)
    service.process = service.popen()
    return service
