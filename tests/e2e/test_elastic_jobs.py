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

from e2e.running import Platform
from resized_keras import PATIENCE_S, PROGRAM, ResizedKeras
from runai.hub_service.cli.framework.hub_login import HubLogin
from runai.hub_service.wire.errors import Unavailable
from runai.hub_service.wire.schemas import SubmitRequest, WorkloadDetail
from shared_hub import GROWS_AT_ONCE
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
EPOCHS = 40
COUNTING = Path(__file__).with_name("counting.py")


class ElasticPlatform:
    """A platform of five GPUs where bob trains, and patty's jobs start and end."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.bob, self.patty = platform.client("bob"), platform.client("patty")
        with HubLogin(f"{platform.url}/") as hub:
            hub.log_in("bob", platform.password("bob"))
            self.bobs_token = hub.mint_token()

    def comes(self, name: str, gpus: float) -> None:
        """Submit a job of patty's; return when it has its GPUs."""
        command = ["python", str(COUNTING), "1000000", "0.1"]
        self.patty.submit(SubmitRequest(name=name, gpus=gpus, command=command))
        eventually(lambda: self.patty.workload(f"nlp/{name}").state == "running", within=PATIENCE_S)

    def goes(self, name: str) -> None:
        """End patty's job and free its GPUs."""
        self.patty.delete(f"nlp/{name}")

    def trained(self, name: str) -> WorkloadDetail:
        """Return bob's job; assert that it has not failed."""
        job = self.bob.workload(f"vision/{name}")
        assert job.state not in {"failed", "ended"}, self.output(name)
        return job

    def gpus(self, name: str) -> int:
        """Return the number of GPUs of bob's job, 0 while the service is down."""
        try:
            elastic = self.trained(name).elastic
        except Unavailable:
            return 0
        return 0 if elastic is None or elastic.joining else elastic.training

    def trains_on(self, name: str, gpus: int) -> None:
        eventually(lambda: self.gpus(name) == gpus, within=PATIENCE_S)

    def ends_well(self, name: str) -> WorkloadDetail:
        """Wait until the job has succeeded, without a pause or a failure."""
        eventually(lambda: self.trained(name).state == "succeeded", within=2 * PATIENCE_S)
        done = self.trained(name)
        assert (done.pauses, done.failures) == (0, 0)
        return done

    def output(self, name: str) -> str:
        return "\n".join(line.text for line in self.bob.logs(f"vision/{name}"))

    def kill_the_service(self, name: str) -> None:
        """Kill the service by SIGKILL; the hub's next one takes over the processes of a job."""
        before = processes(self.platform, name)
        killed = self.platform.service_process()
        killed.kill()

        def is_replaced() -> bool:
            with suppress(LookupError):
                return self.platform.service_process().pid != killed.pid
            return False

        eventually(is_replaced, within=PATIENCE_S)
        self.platform.wait_until_served()
        assert before
        assert processes(self.platform, name) == before


def processes(platform: Platform, name: str) -> set[int]:
    """Return the PIDs of the training processes of bob's job."""
    pids = set()
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            leads = os.getsid(process.pid) == process.pid
        except (psutil.Error, OSError):
            continue
        mine = str(platform.data_dir) in environ.get("RUNAI_CHECKPOINT_DIR", "")
        if mine and leads and environ.get("RUNAI_WORKLOAD") == f"vision/{name}":
            pids.add(process.pid)
    return pids


@pytest.fixture
def story(start_platform: Callable[..., Platform]) -> Callable[[], ElasticPlatform]:
    """Start a platform that grows jobs at once, regardless of their speed on this machine."""
    return lambda: ElasticPlatform(start_platform(environment=GROWS_AT_ONCE))


def submit(story: ElasticPlatform, *arguments: str) -> None:
    """Submit by the command line, as bob."""
    environ = {"RUNAI_API_URL": story.bob.url, "JUPYTERHUB_API_TOKEN": story.bobs_token}
    command = [sys.executable, "-m", "runai.hub_service.cli", "submit", *arguments]
    subprocess.run(command, check=True, cwd=ROOT / "examples", env=os.environ | environ)


@pytest.mark.torch
def test_elastic_examples_succeed_after_resizes_and_a_service_kill(story):
    story = story()
    story.comes("holder", 4)
    digits = ["python", "elastic_digits.py", "--epochs", "40"]
    submit(story, "digits", "--elastic", "--workers", "3", "--", *digits)
    story.trains_on("digits", 1)
    story.goes("holder")
    story.trains_on("digits", 3)
    story.comes("idle", 2)
    story.comes("owner", 0.5)  # within her quota; bob uses half a GPU of it
    story.trains_on("digits", 2)
    story.kill_the_service("digits")
    done = story.ends_well("digits")
    story.goes("idle")

    submit(
        story, "writer", "--elastic", "--workers", "2", "--", "python", "elastic_language_model.py"
    )
    submit(story, "numpy", "--gpus", "1", "--", "python", "train_numpy.py", "--epochs", "2")
    story.ends_well("writer")
    story.ends_well("numpy")

    assert done.elastic is not None
    assert done.elastic.resizes >= 3
    assert done.elastic.speed, "what it told of its speed outlives the service"
    assert "after 240 updates" in story.output("digits")


@pytest.mark.jax
@pytest.mark.keras
def test_keras_result_is_unchanged_by_resizes_and_a_service_kill(story, tmp_path):
    story = story()
    training = ResizedKeras(tmp_path / "training", lambda: story.gpus("keras"))
    story.comes("holder", 4)
    environ = ["--env=KERAS_BACKEND=jax", f"--env=PYTHONPATH={ROOT / 'tests'}"]
    program = ["python", str(PROGRAM), str(training.directory), str(EPOCHS)]
    submit(story, "keras", "--elastic", "--gpus=1", *environ, "--", *program)
    training.trains_on(1)
    story.goes("holder")
    training.trains_on(5)
    story.comes("owner", 2)
    training.trains_on(3)
    story.kill_the_service("keras")
    training.to_the_end()
    story.ends_well("keras")

    assert training.result()["apart"] < 1e-6
