"""Crashes at any await or write, a full disk and a wrong clock lose nothing.

`make test` plays three seeds, `make test-all` twenty, `make test-long` five hundred; `--seed N`
plays one alone.
"""

from __future__ import annotations

import pytest

from faults.hour import Hour

SEEDS_OF_TEST, SEEDS_OF_TEST_ALL, SEEDS_OF_TEST_LONG = 3, 20, 500


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only_seed = metafunc.config.getoption("--seed")
    seeds = [pytest.param(seed, marks=marks_of(seed)) for seed in range(1, SEEDS_OF_TEST_LONG + 1)]
    metafunc.parametrize("seed", seeds if only_seed is None else [only_seed])


def marks_of(seed: int) -> list[pytest.MarkDecorator]:
    if seed > SEEDS_OF_TEST_ALL:
        return [pytest.mark.slow]
    return [pytest.mark.tier("all")] if seed > SEEDS_OF_TEST else []


def test_hour_of_faults_loses_doubles_or_orphans_no_job_and_overgrants_no_gpu(seed, tmp_path):
    outcome = Hour(seed, tmp_path).play()

    assert outcome.violations == [], f"replay: pytest tests/faults --seed {seed}"
    assert outcome.acknowledged > 0  # workloads whose submission was answered
