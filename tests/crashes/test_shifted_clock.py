"""The shifted clock, the only fake of the crash tests, behaves like a real clock."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from crashes.shifted_clock import ShiftedClock

pytestmark = [pytest.mark.cc, pytest.mark.tier("all")]  # with the crashes that set it

PRINT_TIMES = """
import json, os, subprocess, sys, time, psutil, httpx
told = [time.time(), time.monotonic(), psutil.Process(os.getppid()).create_time(), sys.executable]
if sys.argv[1:]:
    told.append(json.loads(subprocess.check_output([sys.executable, "-c", sys.argv[1]])))
print(json.dumps(told))
"""


def test_shifted_test_clock_applies_to_child_processes_and_start_times(tmp_path: Path):
    clock = ShiftedClock(tmp_path / "clock")
    clock.set(-3600)

    def times_in(python: Path) -> list[Any]:
        command = [str(python), "-c", PRINT_TIMES, PRINT_TIMES.replace("sys.argv[1:]", "False")]
        times: list[Any] = json.loads(subprocess.check_output(command))
        return times

    now, lasts, started, python, child = times_in(clock.python)
    _, _, true_start, _, _ = times_in(Path(sys.executable))
    clock.close()

    assert now == pytest.approx(time.time() - 3600, abs=60)
    assert lasts == pytest.approx(time.monotonic(), abs=60)
    assert started == pytest.approx(true_start - 3600, abs=0.1)
    assert python == str(clock.python)
    assert child[0] == pytest.approx(now, abs=60)
    assert child[3] == python
