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

TELL = """
import json, os, subprocess, sys, time, psutil, httpx
told = [time.time(), time.monotonic(), psutil.Process(os.getppid()).create_time(), sys.executable]
if sys.argv[1:]:
    told.append(json.loads(subprocess.check_output([sys.executable, "-c", sys.argv[1]])))
print(json.dumps(told))
"""


def test_all_that_it_starts_see_the_same_clock_and_starts_as_that_tells_them(tmp_path: Path):
    clock = ShiftedClock(tmp_path / "clock")
    clock.set(-3600)

    def told(python: Path) -> list[Any]:
        asked = [str(python), "-c", TELL, TELL.replace("sys.argv[1:]", "False")]
        found: list[Any] = json.loads(subprocess.check_output(asked))
        return found

    now, lasts, started, python, child = told(clock.python)
    _, _, truly, _, _ = told(Path(sys.executable))
    clock.close()

    assert now == pytest.approx(time.time() - 3600, abs=60)
    assert lasts == pytest.approx(time.monotonic(), abs=60)
    assert started == pytest.approx(truly - 3600, abs=0.1)
    assert python == str(clock.python)
    assert child[0] == pytest.approx(now, abs=60)
    assert child[3] == python
