"""Description of a measurement's environment: machine, Python, commit and load.

Every benchmark saves it with its figures, in its file of `benchmarks/results/`.
"""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def machine() -> dict[str, str]:
    """Return the machine and the Python version: `machine`, `python`."""
    return {
        "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        "python": platform.python_version(),
    }


def commit() -> str:
    """Return the measured commit, with `-dirty` if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def measured() -> dict[str, Any]:
    """Return machine, Python and commit, and the load of the last minute.

    Call it before the work begins: afterwards the load is the benchmark's own.
    """
    return {**machine(), "commit": commit(), "load": round(os.getloadavg()[0], 2)}
