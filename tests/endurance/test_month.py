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
"""Number of inspections in one half; from the second on, every collection has its final size."""


@pytest.mark.slow  # users wait for real sockets in virtual time: for days on a busy machine
@pytest.mark.timeout(900)
def test_objects_in_the_service_process_do_not_grow_with_finished_jobs(tmp_path: Path):
    collection_sizes: list[dict[str, int]] = []
    object_counts: list[Counter[str]] = []
    month = Month(LAB, tmp_path)

    def inspect_month(month: Month) -> None:
        collection_sizes.append(sizes(month))
        object_counts.append(live_objects())

    month.play(inspect_month)

    assert month.machine.violations == []
    assert month.submitted == LAB.jobs
    assert len(collection_sizes) == LAB.inspections
    # Two sweeps of jobs may be there besides: a finished job stays for at least ten minutes.
    assert max(size["rows"] for size in collection_sizes) <= MAX_RETAINED + 2 * LAB.sweep
    grown_collections = {
        name: [size[name] for size in collection_sizes]
        for name in collection_sizes[0]
        if _max_size(collection_sizes[HALF:], name)
        > 1.1 * _max_size(collection_sizes[:HALF], name) + 10
    }
    assert grown_collections == {}
    # The service's own classes. A leak of one object per job would leave 400 in the second half.
    leaked_objects = {
        kind: [count[kind] for count in object_counts]
        for kind in object_counts[-1]
        if kind != "others"
        and _max_size(object_counts[HALF:], kind)
        > 1.1 * _max_size(object_counts[:HALF], kind) + LAB.sweep
    }
    assert leaked_objects == {}
    # Libraries have 150,000 objects, and their caches fill slowly: less than 8 objects a job.
    library_growth = object_counts[-1]["others"] - object_counts[HALF]["others"]
    assert library_growth < 8 * HALF * LAB.sweep


def _max_size(samples: list[dict[str, int]] | list[Counter[str]], name: str) -> int:
    return max(sample[name] for sample in samples)
