"""The snapshots of docs/scheduling.md: `runai schedule` decides them as the page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runai.hub_service.scheduler.__main__ import main

DOCS = Path(__file__).parents[2] / "docs"
SCHEDULING_PAGE = (DOCS / "scheduling.md").read_text(encoding="utf-8")

EXPECTED_DECISIONS: dict[str, dict[str, list[str]]] = {
    "claim_on_the_second_type": {"stop": ["bob-2-0"], "reserve": ["patty-1-0"]},
    "cpu_is_part_of_the_promise": {"stop": ["bob-2-0"], "reserve": ["patty-1-0"]},
    "even_surplus": {"start": ["bob-1-0", "bob-1-1", "bob-1-2", "bob-2-0", "bob-2-1"]},
    "guaranteed_workers": {"stop": ["bob-1-2"], "reserve": ["patty-2-0"]},
    "gang_stopped_while_incomplete": {
        "stop": ["gang-0", "gang-1"],
        "reserve": ["patty-1-0"],
    },
    "longest_run_of_those_that_save": {"stop": ["bob-2-0"], "reserve": ["patty-1-0"]},
    "memory_counts_on_its_device": {"start": ["ann-nb-0"]},
    "priority_zero": {"stop": ["bob-1-0"], "reserve": ["bob-3-0"]},
    "quota_beside_gpus_never_lent": {"stop": ["ann-1-0"], "reserve": ["patty-1-0"]},
    "quota_needs_a_move": {"move": ["bob-2-0"], "reserve": ["patty-1-0"]},
    "types_in_order_of_preference": {"start": ["bob-1-0", "bob-2-0"]},
    "shipped_policy_moves_jobs_that_save": {"move": ["bob-2-0"], "reserve": ["ann-1-0"]},
}
"""The decisions about workers of each snapshot, by kind."""


@pytest.mark.parametrize("name", sorted(path.stem for path in (DOCS / "snapshots").iterdir()))
def test_documented_snapshot_gets_the_documented_decisions(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(DOCS / "snapshots" / f"{name}.json")]) == 0

    workers_by_kind: dict[str, list[str]] = {}
    for decision in json.loads(capsys.readouterr().out)["decisions"]:
        if "worker" in decision:
            workers_by_kind.setdefault(decision["kind"], []).append(decision["worker"])
    assert {
        kind: sorted(workers) for kind, workers in workers_by_kind.items()
    } == EXPECTED_DECISIONS[name]
    assert f"(snapshots/{name}.json)" in SCHEDULING_PAGE
