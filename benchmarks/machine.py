"""What a figure was measured on: the machine, the Python, the commit and how busy the machine was.

Every benchmark keeps these beside its figures, in its own file of `benchmarks/results/`; what is
measured, and against what, is the benchmark's own.
"""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def machine() -> dict[str, str]:
    """Name the machine and the Python: `machine`, `python`."""
    return {
        "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        "python": platform.python_version(),
    }


def commit() -> str:
    """Name the commit that is measured; `-dirty` where files differ from it."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def measured() -> dict[str, Any]:
    """Name what a benchmark is measured on, and the load of the last minute.

    Ask before the work begins: afterwards the load is the benchmark's own.
    """
    return {**machine(), "commit": commit(), "load": round(os.getloadavg()[0], 2)}
