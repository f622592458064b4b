"""Fixtures of the tests on Kubernetes; `plane` is the whole suite's.

lab       a namespace that is gone after the test
rights    kubeconfig of the chart's service account: what the scheduler runs with
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane


@pytest.fixture
def lab(plane: ControlPlane) -> Iterator[ClusterLab]:
    made = ClusterLab(plane)
    yield made
    made.remove()


@pytest.fixture
def rights(plane: ControlPlane) -> Path:
    return plane.service_account("runai", "runai-scheduler")
