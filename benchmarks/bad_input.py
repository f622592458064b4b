"""Fuzz every parser of user input, and count inputs and findings.

    python benchmarks/bad_input.py [--seconds 20] [--only form …]

Each parser is fuzzed for the given time, guided by line coverage (tests/input/fuzz.py; needs
atheris). Writes benchmarks/results/bad_input.json.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from machine import measured

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/bad_input.json"
INPUT = ROOT / "tests/input"


def main() -> None:
    """Fuzz the parsers in sequence."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=20)
    options.add_argument("--only", nargs="*", help="these parsers; of the others figures are kept")
    arguments = options.parse_args()
    seconds = arguments.seconds
    sys.path.insert(0, str(INPUT.parent))
    from parsers import PARSERS  # noqa: PLC0415  found by the line above

    figures = {**measured(), "seconds_each": seconds, "parsers": {}}
    if arguments.only:
        figures["parsers"] = json.loads(RESULTS.read_text(encoding="utf-8"))["parsers"]
    for name in arguments.only or PARSERS:
        done = subprocess.run(
            [sys.executable, str(INPUT / "fuzz.py"), name, str(seconds)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        tried = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        covered = re.findall(r"cov: (\d+)", done.stderr)
        figures["parsers"][name] = {
            "inputs": int(tried[1]) if tried else 0,
            "branches_reached": int(covered[-1]) if covered else 0,
            "faults": int(done.returncode != 0),
        }
        print(name, figures["parsers"][name], flush=True)
        if done.returncode:
            print(done.stderr[-1500:])
        for figure in ("inputs", "faults"):
            figures[figure] = sum(each[figure] for each in figures["parsers"].values())
        # Saved after each, so that an aborted run keeps its findings.
        RESULTS.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
