"""`make test-cluster` on real nodes: it runs on unused ones, and refuses an installed chart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from control_plane.named_cluster import CONTEXT, NamedCluster
from nodes_lab import chart_values, provide_volume
from own_release import VALUES, OwnRelease
from real_nodes.cluster import RealCluster
from real_nodes.images import RUNAI

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(1200)]

CHECKOUT = Path(__file__).parents[2]
ADMIN_CONTEXT = "administrator"
"""The context of the nodes' own kubeconfig."""


def run_cluster_tests(
    cluster: RealCluster, settings: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the tests of an own cluster like `make`."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "tests/own_cluster"],
        cwd=CHECKOUT,
        env={
            **os.environ,
            "KUBECONFIG": str(cluster.plane.kubeconfig),
            "RUNAI_REQUIRE": "own_cluster",
            CONTEXT: ADMIN_CONTEXT,
            "NO_PROXY": cluster.plane.host,
            **settings,
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_cluster_tests_pass_on_a_named_cluster_and_leave_no_objects(tmp_path: Path):
    values_file = tmp_path / "values.json"
    values_file.write_text(json.dumps(chart_values()))
    with RealCluster() as second_cluster, second_cluster.network.entered():
        provide_volume(second_cluster)
        settings = {VALUES: str(values_file), "RUNAI_CLUSTER_IMAGE": RUNAI}
        result = run_cluster_tests(second_cluster, settings)
        kubectl = second_cluster.plane.kubectl
        remaining_objects = kubectl("get", "namespaces,clusterroles,crds", "-o", "name")
        remaining_objects += kubectl("get", "nodes", "--show-labels")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "runai" not in remaining_objects


def test_cluster_tests_refuse_an_installed_chart_and_change_no_objects(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBECONFIG", str(cluster.plane.kubeconfig))
    monkeypatch.setenv("NO_PROXY", cluster.plane.host)
    objects_before = installed_objects(cluster)

    with (
        NamedCluster(ADMIN_CONTEXT) as named,
        pytest.raises(RuntimeError, match=r"is, or was, installed there: .*namespaces/runai"),
    ):
        OwnRelease(named).__enter__()

    assert installed_objects(cluster) == objects_before != []


def installed_objects(cluster: RealCluster) -> list[str]:
    """Return the objects of a release outside of tests' own namespaces, which come and go."""
    found = cluster.plane.kubectl("get", "namespaces,clusterroles,crds", "-o", "name")
    return [name for name in found.splitlines() if "runai" in name]


def test_unknown_kubeconfig_context_is_named_in_the_error(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBECONFIG", str(cluster.plane.kubeconfig))

    with pytest.raises(RuntimeError, match="RUNAI_CLUSTER_CONTEXT=unknown"):
        NamedCluster("unknown").__enter__()
