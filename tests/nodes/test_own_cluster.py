"""`make test-cluster` on real nodes: it runs on unused ones, and refuses an installed chart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from control_plane.named import CONTEXT, NamedCluster
from nodes_lab import chart_values, provide_volume
from own_release import VALUES, OwnRelease
from real_nodes.cluster import RealCluster
from real_nodes.images import RUNAI

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(1200)]

CHECKOUT = Path(__file__).parents[2]
ADMIN = "administrator"
"""The context of the nodes' own kubeconfig."""


def played(cluster: RealCluster, settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the tests of an own cluster like `make`."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "tests/own_cluster"],
        cwd=CHECKOUT,
        env={
            **os.environ,
            "KUBECONFIG": str(cluster.plane.kubeconfig),
            "RUNAI_REQUIRE": "own_cluster",
            CONTEXT: ADMIN,
            "NO_PROXY": cluster.plane.host,
            **settings,
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_cluster_tests_pass_on_a_named_cluster_and_leave_no_objects(tmp_path: Path):
    settings = tmp_path / "values.json"
    settings.write_text(json.dumps(chart_values()))
    with RealCluster() as other, other.network.entered():
        provide_volume(other)
        done = played(other, {VALUES: str(settings), "RUNAI_CLUSTER_IMAGE": RUNAI})
        left = other.plane.kubectl("get", "namespaces,clusterroles,crds", "-o", "name")
        left += other.plane.kubectl("get", "nodes", "--show-labels")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "runai" not in left


def test_cluster_tests_refuse_an_installed_chart_and_change_no_objects(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBECONFIG", str(cluster.plane.kubeconfig))
    monkeypatch.setenv("NO_PROXY", cluster.plane.host)
    before = installed(cluster)

    with (
        NamedCluster(ADMIN) as named,
        pytest.raises(RuntimeError, match=r"is, or was, installed there: .*namespaces/runai"),
    ):
        OwnRelease(named).__enter__()

    assert installed(cluster) == before != []


def installed(cluster: RealCluster) -> list[str]:
    """Return the objects of a release outside of tests' own namespaces, which come and go."""
    found = cluster.plane.kubectl("get", "namespaces,clusterroles,crds", "-o", "name")
    return [name for name in found.splitlines() if "runai" in name]


def test_unknown_kubeconfig_context_is_named_in_the_error(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBECONFIG", str(cluster.plane.kubeconfig))

    with pytest.raises(RuntimeError, match="RUNAI_CLUSTER_CONTEXT=another"):
        NamedCluster("another").__enter__()
