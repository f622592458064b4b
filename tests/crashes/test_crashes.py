"""Break service, hub, agent, worker, supervisors, disk, clock and database of a real platform.

After every fault nothing is lost, doubled, orphaned, over-granted or left unexplained.
`make test-all` plays one seed, `make test-long` twenty, `--seed N` one alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from crashes.fault_injection import FAULT_KINDS, faults_of_seed, needs_of
from crashes.seed_run import run_seed

FAST_SEEDS = {2}
SEEDS = range(1, 21)
MARKER_BY_NEED = {
    "disk": pytest.mark.mounts,
    "clock": pytest.mark.cc,
    "server": pytest.mark.postgresql,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" not in metafunc.fixturenames:
        return
    only_seed = metafunc.config.getoption("--seed")
    seeds = SEEDS if only_seed is None else [only_seed]
    metafunc.parametrize(
        "seed",
        [
            pytest.param(
                seed,
                marks=[
                    *(MARKER_BY_NEED[need] for need in sorted(needs_of(faults_of_seed(seed)))),
                    *([pytest.mark.slow] if only_seed is None and seed not in FAST_SEEDS else []),
                ],
            )
            for seed in seeds
        ],
    )


def test_twenty_crash_test_seeds_contain_every_fault_five_times():
    faults_of_all_seeds = [kind for seed in SEEDS for kind in faults_of_seed(seed)]

    assert all(faults_of_all_seeds.count(kind) >= 5 for kind in FAULT_KINDS)


@pytest.mark.hub
@pytest.mark.timeout(600)
def test_platform_crashes_lose_double_or_orphan_no_job_and_overgrant_no_gpu(
    seed: int, tmp_path: Path
):
    outcome = run_seed(seed, tmp_path)

    replay_hint = f"replay: pytest tests/crashes --seed {seed}; {outcome.faults}"
    assert outcome.violations == [], replay_hint
    assert [kind for kind, _ in outcome.faults] == faults_of_seed(seed)
    assert outcome.checks > 0  # of the database, for violations
