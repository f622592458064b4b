"""Fixtures of the chart's tests on a control plane; `plane` belongs to the whole suite.

lab       a namespace that is removed after the test, with all projects
rights    kubeconfig of the installed service account
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane


@pytest.fixture
def lab(plane: ControlPlane) -> Iterator[ClusterLab]:
    cluster_lab = ClusterLab(plane)
    yield cluster_lab
    cluster_lab.forget_projects()
    cluster_lab.remove()


@pytest.fixture
def rights(plane: ControlPlane) -> Path:
    return plane.service_account("runai", "runai-scheduler")
