"""Break service, hub, agent, worker, supervisors, disk, clock and database of a real platform.

After every fault nothing is lost, doubled, orphaned, over-granted or left unexplained.
`make test-all` plays one seed, `make test-long` twenty, `--seed N` one alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from crashes.breakages import KINDS, hand, needs_of
from crashes.story import play

FAST = {2}
SEEDS = range(1, 21)
MARKS = {
    "disk": pytest.mark.mounts,
    "clock": pytest.mark.cc,
    "server": pytest.mark.postgresql,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" not in metafunc.fixturenames:
        return
    alone = metafunc.config.getoption("--seed")
    seeds = SEEDS if alone is None else [alone]
    metafunc.parametrize(
        "seed",
        [
            pytest.param(
                seed,
                marks=[
                    *(MARKS[need] for need in sorted(needs_of(hand(seed)))),
                    *([pytest.mark.slow] if alone is None and seed not in FAST else []),
                ],
            )
            for seed in seeds
        ],
    )


def test_twenty_crash_test_seeds_contain_every_breakage_five_times():
    breakages = [kind for seed in SEEDS for kind in hand(seed)]

    assert all(breakages.count(kind) >= 5 for kind in KINDS)


@pytest.mark.hub
@pytest.mark.timeout(600)
def test_platform_crashes_lose_double_or_orphan_no_job_and_overgrant_no_gpu(
    seed: int, tmp_path: Path
):
    outcome = play(seed, tmp_path)

    assert outcome.wrong == [], f"replay: pytest tests/crashes --seed {seed}; {outcome.faults}"
    assert [kind for kind, _ in outcome.faults] == hand(seed)
    assert outcome.checks
