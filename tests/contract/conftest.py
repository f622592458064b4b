"""The contract suite's only fixture: `lab`, a cluster of each kind with handles to play with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from labs import Lab, SimulatedLab, local_lab, running


@pytest.fixture(params=["simulated", "local"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Lab]:
    """Return a lab of one node with four devices."""
    if request.param == "simulated":
        simulated = SimulatedLab()
        async with running(simulated.simulated):
            yield simulated
    else:
        async with local_lab(tmp_path) as local:
            yield local
