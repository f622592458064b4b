"""One start of one worker, by a real supervisor, and a local cluster with its controls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from labs import LocalLab, local_lab
from starts import Start, one_start


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    with one_start(tmp_path / "attempt") as started:
        yield started


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[LocalLab]:
    async with local_lab(tmp_path) as opened:
        yield opened
