"""`runai exec` on real nodes: a program in the container of a job, which runs on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from nodes_hub import NodesHub
from nodes_lab import NodesLab, service_of
from real_nodes.cluster import RealCluster
from runai.hub_service.client import Client
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(300)]

JOBS = "/apis/batch/v1/namespaces/runai/jobs"
WAIT_FOR_TERM = "trap 'exit 143' TERM; tail -f /dev/null & wait"


@pytest.fixture(scope="module")
def running_job(cluster: RealCluster, hub: NodesHub) -> Iterator[str]:
    """A job of one GPU that runs, for all of these tests; the last test suspends it."""
    with cluster.network.entered(), service_of(cluster.plane) as service:
        lab = NodesLab(cluster)
        lab.seen_project(service, "execs", quota=1, members=["bob"])
        command = ["sh", "-c", WAIT_FOR_TERM]
        fields: Any = {"name": "job", "owner": "bob", "gpus": 1, "command": command}
        service.submit(SubmitRequest(**fields, grace_seconds=1))
        eventually(
            lambda: service.workload("execs/job").state == "running", within=90, what="the job runs"
        )
    yield "execs/job"
    with cluster.network.entered():
        lab.plane.request("DELETE", JOBS, {"propagationPolicy": "Background"})
        path = "/api/v1/namespaces/runai/pods?labelSelector=batch.kubernetes.io/job-name"
        eventually(lambda: not lab.plane.request("GET", path)["items"], what="the job is deleted")
        lab.remove()


@pytest.fixture
def execute(running_job: str, service: Client):
    token = service.transport._http.get().headers["Authorization"].removeprefix("Bearer ")

    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-P", "-m", "runai.hub_service.cli", "exec", *arguments]
        return subprocess.run(
            command,
            env={**os.environ, "RUNAI_API_URL": service.url, "JUPYTERHUB_API_TOKEN": token},
            input=stdin,
            capture_output=True,
            check=False,
        )

    return run


def test_exec_runs_in_the_container_and_environment_of_the_job(running_job, execute):
    script = "echo $RUNAI_WORKLOAD $NVIDIA_VISIBLE_DEVICES; echo wrong >&2; exit 7"

    result = execute(running_job, "--", "sh", "-c", script)

    workload, device = result.stdout.decode().split()
    assert result.returncode == 7
    assert workload == running_job
    assert result.stderr == b"wrong\n"
    assert device.startswith("GPU-")


def test_exec_forwards_stdin_byte_for_byte(running_job, execute):
    stdin = bytes(range(256)) * 1500  # long enough for several messages

    result = execute("-i", running_job, "--", "cat", stdin=stdin)

    assert result.stderr == b""
    assert result.returncode == 0
    assert result.stdout == stdin


def test_exec_without_the_stdin_option_forwards_no_input(running_job, execute):
    result = execute(running_job, "--", "cat", stdin=b"not forwarded")

    assert result.returncode == 0
    assert result.stdout == b""


def test_exec_of_an_unknown_program_exits_with_127_and_a_message(running_job, execute):
    result = execute(running_job, "--", "no-such-program")

    assert result.returncode == 127
    assert result.stderr.decode().startswith("'no-such-program' cannot be run: ")


def test_runai_exec_refuses_a_terminal(running_job, execute):
    result = execute("-it", running_job, "--", "bash")

    assert result.returncode == 1
    assert "gets no terminal" in result.stderr.decode()


def test_exec_leaves_the_job_running_and_is_refused_once_suspended(running_job, execute, service):
    execute(running_job, "--", "sh", "-c", "exit 3")
    assert service.workload(running_job).state == "running"
    service.suspend(running_job)
    eventually(lambda: service.workload(running_job).state == "suspended", what="it is suspended")

    result = execute(running_job, "--", "true")

    assert result.returncode == 1
    assert f"Worker 0 of {running_job} does not run." in result.stderr.decode()
