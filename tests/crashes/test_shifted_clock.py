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

TIME_SHIFT_S = -3600
TIMES_SCRIPT = """
import json, os, subprocess, sys, time, psutil, httpx
times = [time.time(), time.monotonic(), psutil.Process(os.getppid()).create_time(), sys.executable]
if sys.argv[1:]:
    times.append(json.loads(subprocess.check_output([sys.executable, "-c", sys.argv[1]])))
print(json.dumps(times))
"""
"""Prints its times, its parent's start, its interpreter, and the same of a child with argv[1]."""


def test_shifted_test_clock_applies_to_child_processes_and_start_times(tmp_path: Path):
    clock = ShiftedClock(tmp_path / "clock")
    clock.set(TIME_SHIFT_S)

    def times_in(python: Path) -> list[Any]:
        childless_script = TIMES_SCRIPT.replace("sys.argv[1:]", "False")
        command = [str(python), "-c", TIMES_SCRIPT, childless_script]
        times: list[Any] = json.loads(subprocess.check_output(command))
        return times

    wall_time, monotonic_time, start_of_parent, interpreter, child = times_in(clock.python)
    child_wall_time, _, _, child_interpreter = child
    _, _, true_start_of_parent, _, _ = times_in(Path(sys.executable))
    clock.close()

    max_run_time_s = 60  # between the reading in the process and the comparison here
    assert wall_time == pytest.approx(time.time() + TIME_SHIFT_S, abs=max_run_time_s)
    assert monotonic_time == pytest.approx(time.monotonic(), abs=max_run_time_s)  # not shifted
    assert start_of_parent == pytest.approx(true_start_of_parent + TIME_SHIFT_S, abs=0.1)
    assert interpreter == str(clock.python)
    assert child_wall_time == pytest.approx(wall_time, abs=max_run_time_s)
    assert child_interpreter == interpreter
