"""Elastic trainings on a user's platform: the examples, and Keras.

They are submitted, start small, grow, shrink for an owner, outlive a killed service, and succeed.
Nothing is timed: each step waits for a state of the platform.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hub_platform import HubPlatform
from resized_keras import PATIENCE_S, PROGRAM, ResizedKeras
from runai.hub_service.wire.errors import Unavailable
from runai.hub_service.wire.schemas import WorkloadDetail
from runai.hub_service.wire.workload_request import SubmitRequest
from shared_hub import GROWS_AT_ONCE
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
KERAS_EPOCHS = 40
COUNTING_PROGRAM = Path(__file__).parents[1] / "crashes/counting_job.py"


class ElasticPlatform:
    """A platform of five GPUs where bob trains, and patty's jobs start and end."""

    def __init__(self, platform: HubPlatform) -> None:
        self.platform = platform
        self.bob, self.patty = platform.client("bob"), platform.client("patty")
        self.bobs_token = platform.login_token("bob")

    def start_pattys_job(self, name: str, gpus: float) -> None:
        """Submit a job of patty's; return when it has its GPUs."""
        command = ["python", str(COUNTING_PROGRAM), "1000000", "0.1"]
        self.patty.submit(SubmitRequest(name=name, gpus=gpus, command=command))
        eventually(lambda: self.patty.workload(f"nlp/{name}").state == "running", within=PATIENCE_S)

    def delete_pattys_job(self, name: str) -> None:
        """End patty's job and free its GPUs."""
        self.patty.delete(f"nlp/{name}")

    def job(self, name: str) -> WorkloadDetail:
        """Return bob's job; assert that it has not failed."""
        job = self.bob.workload(f"vision/{name}")
        assert job.state not in {"failed", "ended"}, self.output(name)
        return job

    def gpus(self, name: str) -> int:
        """Return the number of GPUs of bob's job, 0 while the service is down."""
        try:
            state = self.job(name).elastic
        except Unavailable:
            return 0
        return 0 if state is None or state.joining else state.training

    def wait_until_training_on(self, name: str, gpus: int) -> None:
        eventually(lambda: self.gpus(name) == gpus, within=PATIENCE_S)

    def wait_for_success(self, name: str) -> WorkloadDetail:
        """Wait until the job has succeeded, without a pause or a failure."""
        eventually(lambda: self.job(name).state == "succeeded", within=2 * PATIENCE_S)
        job = self.job(name)
        assert job.pauses == 0
        assert job.failures == 0
        return job

    def output(self, name: str) -> str:
        return "\n".join(line.text for line in self.bob.logs(f"vision/{name}"))

    def kill_service(self, name: str) -> None:
        """Kill the service by SIGKILL; the hub's next one takes over the processes of a job."""
        pids_before = training_processes(self.platform, name)
        service = self.platform.service_process()
        service.kill()

        def is_replaced() -> bool:
            with suppress(LookupError):
                return self.platform.service_process().pid != service.pid
            return False

        eventually(is_replaced, within=PATIENCE_S)
        self.platform.wait_until_served()
        assert pids_before
        assert training_processes(self.platform, name) == pids_before


def training_processes(platform: HubPlatform, name: str) -> set[int]:
    """Return the PIDs of the training processes of bob's job."""
    pids = set()
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            is_session_leader = os.getsid(process.pid) == process.pid
        except (psutil.Error, OSError):
            continue
        is_ours = str(platform.data_dir) in environ.get("RUNAI_CHECKPOINT_DIR", "")
        if is_ours and is_session_leader and environ.get("RUNAI_WORKLOAD") == f"vision/{name}":
            pids.add(process.pid)
    return pids


@pytest.fixture
def start_elastic(start_platform: Callable[..., HubPlatform]) -> Callable[[], ElasticPlatform]:
    """Start a platform that grows jobs at once, regardless of their speed on this machine."""
    return lambda: ElasticPlatform(start_platform(shell=GROWS_AT_ONCE))


def submit(elastic: ElasticPlatform, *arguments: str) -> None:
    """Submit by the command line, as bob."""
    environ = {"RUNAI_API_URL": elastic.bob.url, "JUPYTERHUB_API_TOKEN": elastic.bobs_token}
    command = [sys.executable, "-m", "runai.hub_service.cli", "submit", *arguments]
    subprocess.run(command, check=True, cwd=ROOT / "examples", env=os.environ | environ)


@pytest.mark.torch
def test_elastic_examples_succeed_after_resizes_and_a_service_kill(start_elastic):
    elastic = start_elastic()
    elastic.start_pattys_job("holder", 4)
    digits_command = ["python", "elastic_digits.py", "--epochs", "40"]
    submit(elastic, "digits", "--elastic", "--workers", "3", "--", *digits_command)
    elastic.wait_until_training_on("digits", 1)
    elastic.delete_pattys_job("holder")
    elastic.wait_until_training_on("digits", 3)
    elastic.start_pattys_job("idle", 2)
    elastic.start_pattys_job("owner", 0.5)  # within her quota; bob uses half a GPU of it
    elastic.wait_until_training_on("digits", 2)
    elastic.kill_service("digits")
    digits_job = elastic.wait_for_success("digits")
    elastic.delete_pattys_job("idle")

    writer_command = ["python", "elastic_language_model.py"]
    submit(elastic, "writer", "--elastic", "--workers", "2", "--", *writer_command)
    submit(elastic, "numpy", "--gpus", "1", "--", "python", "train_numpy.py", "--epochs", "2")
    elastic.wait_for_success("writer")
    elastic.wait_for_success("numpy")

    assert digits_job.elastic is not None
    assert digits_job.elastic.resizes >= 3
    assert digits_job.elastic.speed, "the reported speed outlives the service"
    assert "after 240 updates" in elastic.output("digits")


@pytest.mark.jax
@pytest.mark.keras
def test_keras_result_is_unchanged_by_resizes_and_a_service_kill(start_elastic, tmp_path):
    elastic = start_elastic()
    training = ResizedKeras(tmp_path / "training", lambda: elastic.gpus("keras"))
    elastic.start_pattys_job("holder", 4)
    environ = ["--env=KERAS_BACKEND=jax", f"--env=PYTHONPATH={ROOT / 'tests'}"]
    program = ["python", str(PROGRAM), str(training.directory), str(KERAS_EPOCHS)]
    submit(elastic, "keras", "--elastic", "--gpus=1", *environ, "--", *program)
    training.trains_on(1)
    elastic.delete_pattys_job("holder")
    training.trains_on(5)
    elastic.start_pattys_job("owner", 2)
    training.trains_on(3)
    elastic.kill_service("keras")
    training.to_the_end()
    elastic.wait_for_success("keras")

    difference_to_plain_keras = training.result()["apart"]
    assert difference_to_plain_keras < 1e-6
