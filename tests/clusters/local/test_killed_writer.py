"""Both databases survive kill -9 in any write: intact, and with all acknowledged data."""

from __future__ import annotations

import subprocess
import sys

import pytest

import killed_writer


@pytest.mark.parametrize("kind", ["cluster", "ledger"])
@pytest.mark.parametrize("kill_count", [20, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_acknowledged_database_writes_survive_kill_9_during_any_write(kind, kill_count, tmp_path):
    seed = "7"  # of the random moments of the kills
    result = subprocess.run(
        [sys.executable, killed_writer.__file__, kind, str(tmp_path), str(kill_count), seed],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{kill_count} kills" in result.stdout
