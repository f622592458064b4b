"""After any end of a run, no process, mount or control group of its nodes remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from real_nodes import cgroups
from real_nodes.cluster import PLACES, RealCluster, sweep
from waiting import eventually

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(300)]

TESTS = Path(__file__).parents[1]
CLUSTER_PROGRAM = """
import signal
from real_nodes.cluster import RealCluster

with RealCluster() as cluster:
    print(cluster.place, flush=True)
    signal.pause()
"""


def remains_of(place: Path) -> list[str]:
    """Return the processes, mounts and control groups of a run."""
    commands = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    groups = [str(group) for group in cgroups.below(place.name).values() if group.exists()]
    return [line for line in [*commands, *mounts] if str(place) in line] + groups


def test_killed_test_cluster_leaves_no_process_and_next_run_removes_its_files(
    cluster: RealCluster,
):
    """The tests' own cluster runs beside the killed one, and stays."""
    second_cluster = subprocess.Popen(
        [sys.executable, "-c", CLUSTER_PROGRAM],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert second_cluster.stdout is not None
    with second_cluster.stdout as output:
        place = Path(output.readline().strip())
    assert place.parent == PLACES
    assert remains_of(place)

    second_cluster.send_signal(signal.SIGKILL)
    second_cluster.wait()

    def only_empty_groups() -> bool:
        return all(line.startswith("/sys/fs/cgroup") for line in remains_of(place))

    eventually(only_empty_groups, what="all its processes have ended")
    sweep()
    assert not remains_of(place)
    assert not place.exists()
    assert cluster.place.exists()
    for node in cluster.nodes:
        node.until_ready()
