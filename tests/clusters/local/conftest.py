"""One start of one worker, by a real supervisor."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from starts import Start, one_start


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    with one_start(tmp_path / "attempt") as started:
        yield started
