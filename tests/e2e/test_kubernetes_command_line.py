"""The command line and the magics against Kubernetes: a job's whole life, in its own image.

JupyterHub (which issues the tokens), API server and service are real; the node runs pods as
processes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane
from hub_platform import PASSWORD
from kubernetes_hub import KubernetesHub, running_kubernetes_hub
from runai.hub_service.cli.framework.command_list import cli
from runai.hub_service.cli.framework.hub_login import HubLogin
from runai.widgets import connect
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.kubernetes, pytest.mark.timeout(900)]

TRAINING_PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("epoch 1", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print("trained", flush=True)
"""


@pytest.fixture(scope="module")
def hub(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesHub]:
    place = tmp_path_factory.mktemp("hub")
    with ClusterLab(plane) as lab, running_kubernetes_hub(lab, place, gpus=2) as running:
        yield running


@pytest.fixture
def environment(hub: KubernetesHub, tmp_path, monkeypatch) -> dict[str, str]:
    """Return the platform's variables in the environment of ana's session."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RUNAI_PROJECT", raising=False)
    url = str(hub.http.base_url).rstrip("/")
    with HubLogin(f"{url}/") as login:
        login.log_in("ana", PASSWORD)
        token = login.mint_token()
    return {"RUNAI_API_URL": f"{url}/services/runai/", "JUPYTERHUB_API_TOKEN": token}


@pytest.fixture
def runai(environment: dict[str, str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        result = CliRunner(env=environment).invoke(cli, arguments, prog_name="runai")
        assert result.exit_code == 0, result.output
        return str(result.output)

    return run


@pytest.fixture
def failing_runai(environment: dict[str, str]) -> Callable[..., str]:
    """Return the command line for refused commands; 70 would be an error of its own."""

    def run(*arguments: str) -> str:
        result = CliRunner(env=environment).invoke(cli, arguments, prog_name="runai")
        assert result.exit_code not in (0, 70), result.output
        return str(result.output)

    return run


def image_of(hub: KubernetesHub, job: str) -> str:
    template: dict[str, Any] = hub.lab.namespace.job(job)["spec"]["template"]
    return str(template["spec"]["containers"][0]["image"])


def state_of(runai: Callable[..., str], name: str) -> str:
    return str(json.loads(runai("describe", "job", name, "-o", "json"))["state"])


def test_cli_submits_describes_suspends_resumes_and_deletes_a_kubernetes_job(
    hub, runai, failing_runai, tmp_path
):
    end_file = tmp_path / "end-training"
    program = ["python", "-u", "-c", TRAINING_PROGRAM, str(end_file)]
    runai("submit", "exp", "-g", "1", "--image", "example/train:2", "--", *program)
    assert image_of(hub, "vision-exp") == "example/train:2"

    eventually(lambda: state_of(runai, "exp") == "running", what="the job runs")
    assert re.search(r"exp\b.*running", runai("list", "jobs"))
    eventually(lambda: "epoch 1" in runai("logs", "exp"), what="its log is there")

    (pod,) = hub.lab.namespace.pods("vision-exp")
    kubectl_target = f"--namespace {hub.lab.namespace.name} {pod['metadata']['name']}"
    refusal = failing_runai("exec", "-it", "exp", "--", "bash", "-c", "nvidia-smi; top")
    assert f"kubectl exec -it {kubectl_target} -- bash -c 'nvidia-smi; top'" in " ".join(
        refusal.split()
    )

    runai("suspend", "exp")
    eventually(lambda: state_of(runai, "exp") == "suspended", what="the job is suspended")
    # The last pod stays until the Job controller has counted it.
    eventually(lambda: not hub.lab.namespace.pods("vision-exp"), what="it has no pods")
    runai("resume", "exp")
    eventually(lambda: state_of(runai, "exp") == "running", what="the job runs again")
    end_file.touch()
    eventually(lambda: state_of(runai, "exp") == "succeeded", what="the job has succeeded")
    description = runai("describe", "job", "exp")
    assert "example/train:2" in description
    assert "suspended by ana" in description

    runai("delete", "exp")
    with hub.service() as client:
        eventually(lambda: "exp" not in {w.name for w in client.workloads()}, what="no job")


def test_notebook_magic_submits_with_the_chosen_image(hub, environment, monkeypatch, tmp_path):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello.py").write_text("print('hello')")
    without_history = Config({"HistoryManager": {"enabled": False}})
    hooks = sys.displayhook, sys.excepthook
    connection = connect(environment["RUNAI_API_URL"], environment["JUPYTERHUB_API_TOKEN"])
    try:
        shell = InteractiveShell(config=without_history)
        shell.run_cell("%load_ext runai.widgets").raise_error()
        cell = "%runai_submit hello.py --gpus 1 --name cell --image example/other:3"
        shell.run_cell(cell).raise_error()
    finally:
        connection.close()
        sys.displayhook, sys.excepthook = hooks

    assert image_of(hub, "vision-cell") == "example/other:3"
    with hub.service() as client:
        client.delete("vision/cell")
