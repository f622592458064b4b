"""The examples of elastic training run by the commands in their first lines, with one result."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
LAUNCHER = ("-m", "runai.elastic.run", "--min", "1", "--max")


def last_line(*words, directory):
    """Run Python with these arguments and return its last line of output."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RUNAI_CHECKPOINT_DIR": str(directory)}
    process = subprocess.run(
        [sys.executable, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()[-1]


def numbers_of(line):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Return the folder for the checkpoints of examples that run in one process."""
    return tmp_path_factory.mktemp("alone")


@pytest.fixture(scope="module")
def run_alone(checkpoints):
    """Return a cached function that runs an example in one process and returns its last line."""
    cached_lines = {}

    def run(*words):
        if words not in cached_lines:
            cached_lines[words] = last_line(
                EXAMPLES / words[0], *words[1:], directory=checkpoints / words[0]
            )
        return cached_lines[words]

    return run


DIGITS = ("elastic_digits.py", "--epochs", "4")
LANGUAGE_MODEL = ("elastic_language_model.py", "--epochs", "1", "--lines", "600")


def test_digits_example_reaches_an_accuracy_above_85_percent(run_alone):
    updates, loss, accuracy = numbers_of(run_alone(*DIGITS))

    assert updates == 4 * 6  # four epochs
    assert loss < 0.6
    assert accuracy > 85


def test_language_model_example_lowers_its_loss(run_alone):
    updates, loss, perplexity = numbers_of(run_alone(*LANGUAGE_MODEL))

    assert updates == 9  # 536 lines in updates of 64, the last of 24
    assert loss < 3.6  # 4.85 before the first update
    assert perplexity < 40


@pytest.mark.parametrize(
    ("example", "launcher"),
    [
        pytest.param(DIGITS, LAUNCHER, id="digits-by-our-launcher"),
        pytest.param(LANGUAGE_MODEL, TORCHRUN, id="language-model-by-torchrun"),
    ],
)
def test_example_in_two_processes_ends_like_a_single_process(
    run_alone, example, launcher, tmp_path
):
    printed = last_line(*launcher, "2", EXAMPLES / example[0], *example[1:], directory=tmp_path)

    assert pytest.approx(numbers_of(run_alone(*example)), rel=0.01) == numbers_of(printed)


def test_rerun_of_a_finished_example_prints_the_same_result(run_alone, checkpoints):
    first = run_alone(*LANGUAGE_MODEL)

    rerun_line = last_line(
        EXAMPLES / LANGUAGE_MODEL[0], *LANGUAGE_MODEL[1:], directory=checkpoints / LANGUAGE_MODEL[0]
    )

    assert rerun_line == first
