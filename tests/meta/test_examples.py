"""Every example is run by a test that names it, so that each is known to work."""

from __future__ import annotations

from pathlib import Path

import pytest

TEST_OF_EXAMPLE = {
    "allocation_and_utilization.ipynb": "tests/e2e/test_allocation_example.py",
    "bob_and_patty.ipynb": "tests/widgets/test_examples.py",
    "elastic_digits.py": "tests/elastic/test_elastic_examples.py",
    "elastic_keras_digits.py": "tests/elastic/keras_shared_code_checks.py",
    "elastic_language_model.py": "tests/elastic/test_elastic_examples.py",
    "first_steps.ipynb": "tests/widgets/test_examples.py",
    "gang.py": "tests/widgets/test_examples.py",
    "sweep.ipynb": "tests/widgets/test_examples.py",
    "train_numpy.py": "tests/widgets/test_train_numpy.py",
    "kubernetes/elastic-one-pod.yaml": "tests/chart/test_examples.py",
    "kubernetes/elastic.yaml": "tests/chart/test_examples.py",
    "kubernetes/gang.yaml": "tests/chart/test_examples.py",
    "kubernetes/job.yaml": "tests/chart/test_examples.py",
    "kubernetes/project.yaml": "tests/chart/test_examples.py",
    "kubernetes/pytorchjob.yaml": "tests/chart/test_examples.py",
    "kubernetes/session.yaml": "tests/chart/test_examples.py",
}
USING_EXAMPLE = {
    "chart.py": "allocation_and_utilization.ipynb",
    "train_tensorflow.py": "allocation_and_utilization.ipynb",
    "sweep.py": "sweep.ipynb",
}
"""Examples that are run by another example."""


def test_every_example_is_run_by_a_test(checkout: Path):
    folder = checkout / "examples"
    example_files = {
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.suffix in {".py", ".ipynb", ".yaml"}
    }

    assert example_files == TEST_OF_EXAMPLE.keys() | USING_EXAMPLE.keys()


@pytest.mark.parametrize(("example", "test"), TEST_OF_EXAMPLE.items(), ids=TEST_OF_EXAMPLE)
def test_example_is_named_in_the_test_that_runs_it(checkout: Path, example, test):
    assert Path(example).stem in (checkout / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(("example", "using_example"), USING_EXAMPLE.items(), ids=USING_EXAMPLE)
def test_example_is_named_in_the_example_that_uses_it(checkout: Path, example, using_example):
    assert Path(example).stem in (checkout / "examples" / using_example).read_text(encoding="utf-8")
