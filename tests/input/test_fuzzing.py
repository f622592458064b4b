"""Half a minute of coverage-guided fuzzing for each parser; `make test-long`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parsers import PARSERS

FUZZ_PROGRAM = Path(__file__).with_name("fuzz.py")
FUZZING_S = 30

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", PARSERS)
def test_parser_reads_or_refuses_fuzzed_input(name):
    pytest.importorskip("atheris", reason="atheris has no wheel for this Python or machine")
    completed = subprocess.run(
        [sys.executable, str(FUZZ_PROGRAM), name, str(FUZZING_S)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )

    assert completed.returncode == 0, completed.stderr[-4000:]
