"""The service's objects do not grow with the number of finished jobs: counts, not mebibytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from endurance.counts import kept, sizes
from endurance.month import Lab, Month
from runai.hub_service.clusters.states.retention import RetentionPolicy

KEPT = 100
LAB = Lab(
    jobs=800,
    days=0.24,
    sweep=50,
    users=8,
    notebooks=0,
    keeping=RetentionPolicy(max_finished=KEPT),
    looks=16,
    report_every_s=300.0,
)
HALF = LAB.looks // 2
"""From then on every collection has its final size."""


@pytest.mark.slow  # users wait for real sockets in virtual time: for days on a busy machine
@pytest.mark.timeout(900)
def test_nothing_that_is_kept_grows_with_the_jobs_that_have_finished(tmp_path: Path):
    named: list[dict[str, int]] = []
    kinds: list[Counter[str]] = []
    month = Month(LAB, tmp_path)

    def look(month: Month) -> None:
        named.append(sizes(month))
        kinds.append(kept())

    month.play(look)

    assert month.machine.violations == []
    assert month.submitted == LAB.jobs
    assert len(named) == LAB.looks
    assert (
        max(one["rows"] for one in named) <= KEPT + 2 * LAB.sweep
    )  # all jobs stay for ten minutes
    grown = {
        what: [one[what] for one in named]
        for what in named[0]
        if _most(named[HALF:], what) > 1.1 * _most(named[:HALF], what) + 10
    }
    assert grown == {}
    # A leak of one object per job would leave 400 in the second half. Libraries have 150,000
    # objects, and their caches fill slowly.
    left = {
        kind: [one[kind] for one in kinds]
        for kind in kinds[-1]
        if kind != "others"
        and _most(kinds[HALF:], kind) > 1.1 * _most(kinds[:HALF], kind) + LAB.sweep
    }
    assert left == {}
    assert kinds[-1]["others"] - kinds[HALF]["others"] < 8 * HALF * LAB.sweep


def _most(found: list[dict[str, int]] | list[Counter[str]], what: str) -> int:
    return max(one[what] for one in found)
