"""Print the time of each tier of the suite, next to the last saved figure.

    python benchmarks/tiers.py check=200 test=400 rest=1500         # .ci/run calls it so
    python benchmarks/tiers.py --keep check=200 test=400 rest=1500  # writes results/tiers.json, too

Seconds on a quiet machine; an issue may add 180 to their sum (CONTRIBUTING.md).
"""

import argparse
import json
from pathlib import Path

from machine import measured

RESULTS = Path(__file__).parent / "results" / "tiers.json"


def main() -> None:
    """Print a line for each tier and their sum, and save them with `--keep`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tiers", nargs="+", metavar="TIER=SECONDS")
    parser.add_argument("--keep", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    took = {name: int(s) for name, _, s in (tier.partition("=") for tier in options.tiers)}
    saved = json.loads(RESULTS.read_text())["seconds"] if RESULTS.exists() else {}
    for name, now, before in (
        *((name, now, saved.get(name)) for name, now in took.items()),
        ("all", sum(took.values()), sum(saved.values()) or None),
    ):
        beside = f"kept {before:5} s, ratio {now / before:.2f}" if before else "nothing kept"
        print(f"{name:10} {now:5} s   {beside}")
    if options.keep:
        RESULTS.write_text(json.dumps({**measured(), "seconds": took}, indent=2) + "\n")


if __name__ == "__main__":
    main()
