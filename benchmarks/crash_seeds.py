"""Run seeds of real crashes, each on a new platform, and save the findings.

`python benchmarks/crash_seeds.py --keep` writes `benchmarks/results/faults.json`: the number of
faults by kind, the findings, and the seconds until the platform was ready again, by kind of fault.
A seed with a finding can be replayed alone: `pytest tests/crashes --seed N`.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import ROOT, measured

sys.path.insert(0, str(ROOT / "tests"))

from crashes.fault_injection import faults_of_seed
from crashes.seed_run import SeedOutcome, run_seed

RESULTS = ROOT / "benchmarks/results/faults.json"


def played(seed: int) -> SeedOutcome:
    """Run one seed; an exception that stops it is a finding like any other."""
    with tempfile.TemporaryDirectory(prefix="runai-crashes-", ignore_cleanup_errors=True) as place:
        try:
            return run_seed(seed, Path(place))
        except Exception as failed:  # noqa: BLE001  see above
            return SeedOutcome(seed, violations=[f"{type(failed).__name__}: {failed}"[-2000:]])


def summary(results: list[SeedOutcome]) -> dict[str, Any]:
    """Summarise the results of all seeds."""
    recovered: dict[str, list[float]] = {}
    for kind, seconds in (fault for one in results for fault in one.faults):
        recovered.setdefault(kind, []).append(seconds)
    return {
        "seeds": len(results),
        "seeds_with_findings": sum(bool(one.violations) for one in results),
        "breakages": sum(map(len, recovered.values())),
        "jobs_acknowledged": sum(one.acknowledged for one in results),
        "times_refused": sum(one.refused for one in results),
        "looks_at_what_is_stored": sum(one.checks for one in results),
        "ready_again_after_s": {
            kind: {
                "times": len(seconds),
                "mean": round(statistics.fmean(seconds), 2),
                "worst": round(max(seconds), 2),
            }
            for kind, seconds in sorted(recovered.items())
        },
    }


def main() -> int:
    """Run all seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/faults.json")
    options = parser.parse_args()
    about, began, results = measured(), time.perf_counter(), []
    for seed in range(options.first, options.first + options.seeds):
        one = played(seed)
        results.append(one)
        print(
            f"seed {seed}: {one.violations or 'nothing'}; {one.faults}", file=sys.stderr, flush=True
        )
        if len(one.faults) < len(faults_of_seed(seed)) and not one.violations:
            one.violations.append("not all of its hand was played")
        if time.perf_counter() - began > 60 * options.minutes:
            break
    result = {
        "what": "a real platform of five simulated GPUs, five breakages a seed",
        **about,
        "first_seed": options.first,
        **summary(results),
        "took_s": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(result, indent=2))
    if options.keep:
        saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        saved["real_crashes"] = result
        RESULTS.write_text(json.dumps(saved, indent=2) + "\n")
    return int(any(one.violations for one in results))


if __name__ == "__main__":
    sys.exit(main())
