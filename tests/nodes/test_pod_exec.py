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
from runai.hub_service.wire.schemas import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(300)]

JOBS = "/apis/batch/v1/namespaces/runai/jobs"
WAITS = "trap 'exit 143' TERM; tail -f /dev/null & wait"


@pytest.fixture(scope="module")
def running(cluster: RealCluster, hub: NodesHub) -> Iterator[str]:
    """A job of one GPU that runs, for all of these tests; the last one suspends it."""
    with cluster.network.entered(), service_of(cluster.plane) as service:
        lab = NodesLab(cluster)
        lab.seen_project(service, "execs", quota=1, members=["bob"])
        fields: Any = {"name": "job", "owner": "bob", "gpus": 1, "command": ["sh", "-c", WAITS]}
        service.submit(SubmitRequest(**fields, grace_seconds=1))
        eventually(
            lambda: service.workload("execs/job").state == "running", within=90, what="it runs"
        )
    yield "execs/job"
    with cluster.network.entered():
        lab.plane.request("DELETE", JOBS, {"propagationPolicy": "Background"})
        path = "/api/v1/namespaces/runai/pods?labelSelector=batch.kubernetes.io/job-name"
        eventually(lambda: not lab.plane.request("GET", path)["items"], what="it is gone")
        lab.forget_projects()
        lab.remove()


@pytest.fixture
def execute(running: str, service: Client):
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


def test_exec_runs_in_the_container_and_environment_of_the_job(running, execute):
    says = "echo $RUNAI_WORKLOAD $NVIDIA_VISIBLE_DEVICES; echo wrong >&2; exit 7"

    done = execute(running, "--", "sh", "-c", says)

    workload, device = done.stdout.decode().split()
    assert (done.returncode, workload, done.stderr) == (7, running, b"wrong\n")
    assert device.startswith("GPU-")


def test_exec_forwards_stdin_byte_for_byte(running, execute):
    given = bytes(range(256)) * 1500  # of several messages

    done = execute("-i", running, "--", "cat", stdin=given)

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == given


def test_exec_without_the_stdin_option_forwards_no_input(running, execute):
    done = execute(running, "--", "cat", stdin=b"not handed on")

    assert (done.returncode, done.stdout) == (0, b"")


def test_exec_of_an_unknown_program_exits_with_127_and_a_message(running, execute):
    done = execute(running, "--", "no-such-program")

    assert done.returncode == 127
    assert done.stderr.decode().startswith("'no-such-program' cannot be run: ")


def test_runai_exec_refuses_a_terminal(running, execute):
    done = execute("-it", running, "--", "bash")

    assert done.returncode == 1
    assert "gets no terminal" in done.stderr.decode()


def test_exec_leaves_the_job_running_and_is_refused_once_suspended(running, execute, service):
    execute(running, "--", "sh", "-c", "exit 3")
    assert service.workload(running).state == "running"
    service.suspend(running)
    eventually(lambda: service.workload(running).state == "suspended", what="it has stopped")

    done = execute(running, "--", "true")

    assert done.returncode == 1
    assert f"Worker 0 of {running} does not run." in done.stderr.decode()
