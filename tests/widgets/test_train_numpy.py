"""The example training: a pause does not change its result. Real processes, real signals."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = Path(__file__).parents[2] / "examples" / "train_numpy.py"


def start_training(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", str(TRAINING), "--epochs", "6", *options],
        env={**os.environ, "RUNAI_CHECKPOINT_DIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )


def load_result(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "result.json").read_text())
    return found


def run_training(folder: Path, *options: str) -> str:
    with start_training(folder, "--seconds", "0", *options) as training:
        output, _ = training.communicate()
    assert training.returncode == 0
    return output


def stop_training_after(line_begins: str, with_signal: signal.Signals, folder: Path) -> int:
    with start_training(folder, "--seconds", "0.5") as training:
        assert training.stdout is not None
        for line in training.stdout:
            if line.startswith(line_begins):
                training.send_signal(with_signal)
    return training.returncode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run_training(folder).splitlines()[-1].startswith("Done: ")
    return load_result(folder)


def test_numpy_training_paused_twice_has_the_result_of_an_unpaused_training(undisturbed, tmp_path):
    exit_codes = [stop_training_after(f"epoch   {n}", signal.SIGTERM, tmp_path) for n in (1, 3)]
    assert exit_codes == [128 + signal.SIGTERM] * 2
    assert not (tmp_path / "result.json").exists()
    assert run_training(tmp_path).startswith("Going on at epoch ")

    assert load_result(tmp_path) == undisturbed


def test_killed_training_resumes_from_its_last_whole_checkpoint(undisturbed, tmp_path):
    assert stop_training_after("epoch   3", signal.SIGKILL, tmp_path) == -signal.SIGKILL
    run_training(tmp_path)

    assert load_result(tmp_path) == undisturbed


def test_training_with_a_different_seed_has_different_weights(undisturbed, tmp_path):
    run_training(tmp_path, "--seed", "1")

    assert load_result(tmp_path)["weights"] != undisturbed["weights"]


def test_checkpoint_after_any_batch_restores_the_whole_training_state(tmp_path):
    example = runpy.run_path(str(TRAINING))
    points, labels = example["make_samples"](0)
    points, labels = points[:256], labels[:256]
    uninterrupted, reloaded = example["Training"](0), example["Training"](0)
    for training in (uninterrupted, reloaded):
        training.order %= 256

    for _ in range(7):
        uninterrupted.step(points, labels)
        reloaded.step(points, labels)
        reloaded.save(tmp_path / "checkpoint.npz")
        reloaded = example["Training"](1)
        reloaded.load(tmp_path / "checkpoint.npz")

    assert (reloaded.fingerprint(), reloaded.loss_sum) == (
        uninterrupted.fingerprint(),
        uninterrupted.loss_sum,
    )
    assert reloaded.random.random() == uninterrupted.random.random()
