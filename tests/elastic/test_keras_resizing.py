"""Keras workers of the PyTorch back end, resized by the launcher: each change is a restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resized_keras import PATIENCE_S, PROGRAM, ResizedKeras
from runai.elastic.job_directory import lives
from runai.hub_service.wire.elastic_messages import ElasticFiles
from waiting import eventually

pytestmark = [
    pytest.mark.keras,
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.timeout(900),
]

EPOCHS = 20


class LaunchedTraining:
    """A training under the launcher of this machine."""

    def __init__(self, directory: Path) -> None:
        self._job = directory / "job"
        self._files = ElasticFiles(self._job)

        def target_gpus() -> int:
            if self.launcher.poll() is not None:
                raise RuntimeError(f"the launcher ended with {self.launcher.returncode}")
            target = self._files.target()
            return 0 if target is None else target.gpus

        self.training = ResizedKeras(directory / "training", target_gpus)
        self.launcher = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "runai.elastic.run", "--directory", str(self._job)]
        script = [str(PROGRAM), str(self.training.directory), str(EPOCHS)]
        environ = {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}
        inherited = os.environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PROGRAM.parents[1]), inherited)))
        return subprocess.Popen(
            [*command, "--min", "1", "--max", "2", *script], env=os.environ | environ
        )

    def resize(self, workers: int) -> None:
        command = [sys.executable, "-m", "runai.elastic.run", "--resize", str(workers)]
        subprocess.run([*command, str(self._job)], check=True)

    def close(self) -> None:
        self.launcher.kill()
        self.launcher.wait()
        self.training.to_the_end()
        workers = [status.pid for status in self._files.statuses().values()]
        eventually(lambda: not any(lives(worker) for worker in workers), within=PATIENCE_S)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[[], LaunchedTraining]]:
    launched: list[LaunchedTraining] = []

    def start() -> LaunchedTraining:
        launched.append(LaunchedTraining(tmp_path))
        return launched[-1]

    yield start
    for training in launched:
        training.close()


def test_keras_weights_are_unchanged_by_resizes_a_killed_worker_and_a_pause(launch):
    job = launch()
    job.training.trains_on(2)
    job.resize(1)
    job.training.trains_on(1)
    job.resize(2)
    record = job.training.trains_on(2)
    os.kill(record["pid"], signal.SIGKILL)
    job.training.trains_on(2, without=record["pid"])
    job.launcher.send_signal(signal.SIGTERM)
    job.training.pauses(job.launcher.poll)
    exit_code = job.launcher.returncode
    job.launcher = job.start()
    job.training.trains_on(2)
    job.training.to_the_end()

    assert exit_code == 128 + signal.SIGTERM
    assert job.launcher.wait(PATIENCE_S) == 0
    assert job.training.result() == {"apart": pytest.approx(0, abs=1e-6), "updates": 3 * EPOCHS}
