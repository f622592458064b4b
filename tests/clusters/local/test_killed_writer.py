"""Both databases survive kill -9 in any write: intact, and with all acknowledged data."""

from __future__ import annotations

import subprocess
import sys

import pytest

import killed_writer


@pytest.mark.parametrize("kind", ["cluster", "ledger"])
@pytest.mark.parametrize("kills", [20, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_acknowledged_database_writes_survive_kill_9_during_any_write(kind, kills, tmp_path):
    result = subprocess.run(
        [sys.executable, killed_writer.__file__, kind, str(tmp_path), str(kills), "7"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{kills} kills" in result.stdout
