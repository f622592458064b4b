"""The service's objects do not grow with the number of finished jobs: counts, not mebibytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from endurance.counts import live_objects, sizes
from endurance.month import Lab, Month
from runai.hub_service.clusters.states.retention import RetentionPolicy

MAX_RETAINED = 100
LAB = Lab(
    jobs=800,
    days=0.24,
    sweep=50,
    users=8,
    notebooks=0,
    retention=RetentionPolicy(max_finished=MAX_RETAINED),
    inspections=16,
    report_every_s=300.0,
)
HALF = LAB.inspections // 2
"""From then on every collection has its final size."""


@pytest.mark.slow  # users wait for real sockets in virtual time: for days on a busy machine
@pytest.mark.timeout(900)
def test_objects_in_the_service_process_do_not_grow_with_finished_jobs(tmp_path: Path):
    named: list[dict[str, int]] = []
    kinds: list[Counter[str]] = []
    month = Month(LAB, tmp_path)

    def record_sizes(month: Month) -> None:
        named.append(sizes(month))
        kinds.append(live_objects())

    month.play(record_sizes)

    assert month.machine.violations == []
    assert month.submitted == LAB.jobs
    assert len(named) == LAB.inspections
    assert (
        max(one["rows"] for one in named) <= MAX_RETAINED + 2 * LAB.sweep
    )  # all jobs stay for ten minutes
    grown_sizes = {
        what: [one[what] for one in named]
        for what in named[0]
        if _max_size(named[HALF:], what) > 1.1 * _max_size(named[:HALF], what) + 10
    }
    assert grown_sizes == {}
    # A leak of one object per job would leave 400 in the second half. Libraries have 150,000
    # objects, and their caches fill slowly.
    leaked = {
        kind: [one[kind] for one in kinds]
        for kind in kinds[-1]
        if kind != "others"
        and _max_size(kinds[HALF:], kind) > 1.1 * _max_size(kinds[:HALF], kind) + LAB.sweep
    }
    assert leaked == {}
    assert kinds[-1]["others"] - kinds[HALF]["others"] < 8 * HALF * LAB.sweep


def _max_size(samples: list[dict[str, int]] | list[Counter[str]], what: str) -> int:
    return max(one[what] for one in samples)
