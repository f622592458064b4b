"""Run hours of faults in virtual time with many seeds, and save the findings.

`python benchmarks/fault_hours.py --keep` writes `benchmarks/results/faults.json`. A seed with a
finding is printed with its messages and can be replayed alone: `pytest tests/faults --seed N`.
`--minutes` bounds the run, which reports the number of seeds it covered; `--first` continues after
another run and is saved next to it.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from machine import ROOT, measured

sys.path.insert(0, str(ROOT / "tests"))

RESULTS = ROOT / "benchmarks/results/faults.json"


def play(seed: int) -> dict[str, Any]:
    """Run one seed."""
    from faults.hour import Hour  # noqa: PLC0415  after the path is set, in each process

    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="runai-faults-") as place:
        try:
            outcome = Hour(seed, Path(place)).play()
        except BaseException as failed:  # noqa: BLE001  a finding like any other
            return {"seed": seed, "wrong": [f"{type(failed).__name__}: {failed}"[:300]]}
    return {
        "seed": seed,
        "wrong": outcome.violations,
        "crashes": outcome.crashes,
        "faults": outcome.faults,
        "acknowledged": outcome.acknowledged,
        "recovered_s": outcome.recovered_s,
    }


def main() -> int:
    """Run all seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/faults.json")
    options = parser.parse_args()
    about, began = measured(), time.perf_counter()
    seeds = range(options.first, options.first + options.seeds)
    results = []
    with ProcessPoolExecutor(options.processes) as pool:
        for one in pool.map(play, seeds):
            results.append(one)
            print(f"seed {one['seed']}: {one['wrong'] or 'nothing'}", file=sys.stderr, flush=True)
            if time.perf_counter() - began > 60 * options.minutes:
                pool.shutdown(cancel_futures=True)
                break
    bad = {one["seed"]: one["wrong"] for one in results if one["wrong"]}
    good = [one for one in results if "crashes" in one]
    faults: Counter[str] = Counter()
    for one in good:
        faults.update(one["faults"])
    recovered = [seconds for one in good for seconds in one["recovered_s"]]
    result = {
        "what": "hours of faults in virtual time: the real cluster, controller, tending, stores",
        **about,
        "first_seed": options.first,
        "seeds": len(results),
        "seeds_with_findings": len(bad),
        "lives_ended_early": sum(one["crashes"] for one in good),
        "faults": dict(sorted(faults.items())),
        "jobs_acknowledged": sum(one["acknowledged"] for one in good),
        "recovered_after_s": {
            "what": "virtual time from a breakage's end, or the next start, to the next cycle",
            "breakages": len(recovered),
            "mean": round(statistics.fmean(recovered), 3) if recovered else None,
            "worst": round(max(recovered, default=0.0), 3),
        },
        "took_s": round(time.perf_counter() - began, 1),
    }
    for seed, wrong in bad.items():
        print(f"seed {seed}: {'; '.join(wrong)}")
    print(json.dumps(result, indent=2))
    if options.keep:
        saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        name = "virtual_hours" if options.first == 1 else f"virtual_hours_from_{options.first}"
        saved[name] = result
        RESULTS.write_text(json.dumps(saved, indent=2) + "\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
