"""Write the figures of docs/promises.md's part about load from benchmarks/results/load.json.

`python docs/write_load.py`, after a run of `benchmarks/load.py --keep`; `tests/meta/test_docs.py`
holds the page to the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("promises.md")
RESULTS = Path(__file__).parents[1] / "benchmarks/results/load.json"

PHASES = {"quiet": "nobody submits", "submits": "submits beside"}
FLOODS = {
    "loops": "50 calls under way all the time",
    "open": "100 calls a second, three times what is allowed",
    "arrays": "arrays of 9,000 jobs, deleted one by one",
}
BEGIN, END = "<!-- load -->\n", "<!-- end load -->"


def page(results: Path = RESULTS) -> str:
    """Return the page with the figures between their marks; all else is written by hand."""
    before, start, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else None
    lines = _figures(found) if found is not None else ["Not measured on a quiet machine yet.\n"]
    return before + start + "".join(lines) + end + after


def _figures(found: dict[str, Any]) -> Iterator[str]:
    filled, submits, kept = found["filled"], found["submits"], found["kept"]
    remark = f"; {found['remark']}" if found["remark"] else ""
    yield (
        f"{found['machine']}, Python {found['python']}, commit {found['commit']}{remark}."
        f" {filled['users']} users, {filled['sessions']} sessions,"
        f" {filled['queued_jobs']:,} waiting jobs, {found['streams']['open']:,} event streams.\n\n"
    )
    yield "| call, ms | " + " | ".join(f"{told}: p50 | p99" for told in PHASES.values()) + " |\n"
    yield "|---|" + "--:|--:|" * len(PHASES) + "\n"
    for kind in found["submits"]["calls"]:
        cells = [
            f"{each[quantile]:,.0f}" if quantile in each else "–"  # noqa: RUF001  a dash
            for phase in PHASES
            for each in [found[phase]["calls"].get(kind, {})]
            for quantile in ("p50_ms", "p99_ms")
        ]
        yield f"| {kind} | {' | '.join(cells)} |\n"
    yield (
        f"\n{submits['asked_per_s']:.0f} submits a second were asked for,"
        f" {submits['acknowledged']:,} acknowledged, {submits['refused_for_now']:,} tries told to"
        f" come again, {submits['given_up']:,} given up, {submits['failed']:,} failed;"
        f" {kept['lost']} lost, {kept['stored_twice']} stored twice."
        f" The service took {found['quiet']['service']['cores']} cores while nobody submitted and"
        f" {submits['service']['cores']} then, and {submits['service']['MiB_most']} MiB at most;"
        f" the callers {submits['generator']['cores']} cores.\n"
    )
    yield "\n"
    yield from _fairness(found["fair"])


def _fairness(fair: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each flood; results from before there were several are of the first."""
    parts: dict[str, Any] = {"loops": fair} if "ratio" in fair else fair
    kinds = list(next(iter(parts.values()))["ratio"]["p50_ms"])
    yield f"| beside another's flood, as a multiple of alone | {' | '.join(kinds)} | refused |\n"
    yield "|---|" + "--:|" * (len(kinds) + 1) + "\n"
    for flood, part in parts.items():
        cells = [
            f"{part['ratio']['p50_ms'][kind]:.1f}, {part['ratio']['p99_ms'][kind]:.1f}"
            for kind in kinds
        ]
        statuses = part["flood"]["statuses"]
        refused = sum(n for key, n in statuses.items() if key.endswith(("429", "503")))
        cells.append(f"{refused:,} of {sum(statuses.values()):,}")
        yield f"| {FLOODS[flood]} | {' | '.join(cells)} |\n"
    yield "\nThe middle and p99 of what a quiet user waits; of the flood's calls how many were told"
    yield " to come again.\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
