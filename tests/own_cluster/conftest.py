"""Fixtures of the tests on a cluster of one's own: `make test-cluster`, docs/kubernetes_operate.md.

release   the chart, installed on that cluster for all of them; it is empty before each test
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from control_plane.named_cluster import CONTEXT, NamedCluster
from own_release import OwnRelease


@pytest.fixture(scope="session")
def installed() -> Iterator[OwnRelease]:
    with NamedCluster(os.environ[CONTEXT]) as cluster, OwnRelease(cluster) as own_release:
        yield own_release


@pytest.fixture
def release(installed: OwnRelease) -> Iterator[OwnRelease]:
    yield installed
    installed.empty()
