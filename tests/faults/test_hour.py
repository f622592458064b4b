"""A service abandoned at any await or write, its disk full, its clock wrong: nothing is lost.

`make test` plays twenty seeds, `make test-long` five hundred; `--seed N` plays one alone.
"""

from __future__ import annotations

import pytest

from faults.hour import Hour

FAST = 20
ALL = 500


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    alone = metafunc.config.getoption("--seed")
    seeds = [alone] if alone is not None else range(1, ALL + 1)
    metafunc.parametrize(
        "seed",
        [
            pytest.param(seed, marks=[pytest.mark.slow] if alone is None and seed > FAST else [])
            for seed in seeds
        ],
    )


def test_an_hour_of_faults_loses_doubles_orphans_and_overgrants_nothing(seed, tmp_path):
    told = Hour(seed, tmp_path).tell()

    assert told.wrong == [], f"replay: pytest tests/faults --seed {seed}"
    assert told.acknowledged
