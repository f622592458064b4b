"""The contract suite's only fixture: `lab`, one cluster of each kind and its controls.

    @pytest.mark.not_on_kubernetes("why")   the test needs a feature that Kubernetes lacks
    @pytest.mark.not_on_pods("why")         … that pods of our own lack

The kinds are chosen at collection, so no test is skipped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kubernetes_lab import kubernetes_lab
from labs import Lab, SimulatedLab, local_lab, running
from pods_lab import pods_lab


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize each test with every kind of cluster that it applies to."""
    if "lab" not in metafunc.fixturenames:
        return
    kinds = [pytest.param("simulated"), pytest.param("local")]
    if metafunc.definition.get_closest_marker("not_on_kubernetes") is None:
        kinds.append(pytest.param("kubernetes", marks=pytest.mark.kubernetes))
    if metafunc.definition.get_closest_marker("not_on_pods") is None:
        kinds.append(pytest.param("pods", marks=pytest.mark.kubernetes))
    metafunc.parametrize("lab", kinds, indirect=True)


@pytest.fixture
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Lab]:
    """Return a lab of one node with four devices."""
    if request.param == "simulated":
        simulated = SimulatedLab()
        async with running(simulated.simulated):
            yield simulated
    elif request.param == "local":
        async with local_lab(tmp_path) as local:
            yield local
    elif request.param == "pods":
        async with pods_lab(request.getfixturevalue("plane")) as pods:
            yield pods
    else:
        async with kubernetes_lab(request.getfixturevalue("plane")) as kubernetes:
            yield kubernetes
