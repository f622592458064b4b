"""Fixtures of the tests on Kubernetes; `plane`, `lab` and `kubeconfig` belong to the whole suite.

two_gpus      the lab with a node `gpu-0` of two GPUs, and a project `vision` entitled to both
plugin        the device plugin of that node
witness       a watch that fails the test if a device is ever given to two pods at once
until         wait for a condition while the device plugin works
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from control_plane.device_plugin import DevicePlugin
from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane
from control_plane.witness import Witness


@pytest.fixture
def witness(plane: ControlPlane) -> Iterator[Witness]:
    with Witness(plane) as watching:
        yield watching


@pytest.fixture
def two_gpus(lab: ClusterLab) -> ClusterLab:
    lab.node("gpu-0", gpus=2, labels={"nvidia.com/gpu.memory": "16000"})
    lab.project("vision", quota=2)
    return lab


@pytest.fixture
def plugin(two_gpus: ClusterLab) -> DevicePlugin:
    return DevicePlugin(two_gpus.plane, {"gpu-0": ["GPU-a", "GPU-b"]})


@pytest.fixture
def until(eventually: Any, plugin: DevicePlugin) -> Callable[[Callable[[], Any], str], Any]:
    def wait(condition: Callable[[], Any], what: str) -> Any:
        return eventually(lambda: (plugin.sync_pods(), condition())[1], what=what)

    return wait
