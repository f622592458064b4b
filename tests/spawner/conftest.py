"""The real service, and the real platform, for the spawner's tests.

| fixture | value |
|---|---|
| `service` | a real service, two simulated GPUs: ana and bo in vision (sessions may use 1.5) |
| `hub_client` | the spawner's own client of the service |
| `submission` | a spawner's request: submission("ana", "0.5") |
| `platform` | the run's `runai up` with one simulated GPU, no server running (marker `hub`) |
| `kubeconfig` | for constructing a KubeSpawner; no API server is called |
| `kubernetes_hub` | a hub over a control plane with one GPU; pods are processes, none left over |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes_asyncio.config import kube_config
from kubespawner import clients

from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane
from hub_platform import HubPlatform
from in_process_service import RunningService, running_service
from kubernetes_hub import KubernetesHub, running_kubernetes_hub
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.client import AsyncClient
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.workload_request import SubmitRequest
from runai.spawner.amount import parse_amount
from runai.spawner.session_request import SessionRequest

ACTORS = [Actor("hub", kind="hub"), Actor("ana"), Actor("bo"), Actor("out")]
PROJECTS = [
    ProjectSpec(
        "vision",
        quota=MilliGpu(2000),
        build_quota=MilliGpu(1500),
        members=("ana", "bo"),
    )
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path / "service", ACTORS, PROJECTS, gpus=2) as service:
        yield service


@pytest.fixture
async def hub_client(service: RunningService) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(service.url, service.tokens["hub"], patience_s=1) as client:
        yield client


@pytest.fixture
def submission() -> Callable[..., SubmitRequest]:
    def make(owner: str, amount: str, project: str = "vision", server: str = "") -> SubmitRequest:
        request = SessionRequest(project, parse_amount(amount))
        return request.submission(owner=owner, server=server)

    return make


@pytest.fixture
def platform(one_gpu: HubPlatform) -> Iterator[HubPlatform]:
    """The platform, with every server stopped before and after the test."""
    one_gpu.stop_all()
    yield one_gpu
    one_gpu.stop_all()


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    file = tmp_path / "kubeconfig"
    here = {"name": "here", "context": {"cluster": "here", "user": "here"}}
    server = {"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}
    config = {"current-context": "here", "contexts": [here], "clusters": [server]}
    file.write_text(yaml.safe_dump({**config, "users": [{"name": "here", "user": {}}]}))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    clients.load_config.cache_clear()
    yield
    clients.load_config.cache_clear()


@pytest.fixture(scope="module")
def hub_on_kubernetes(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubernetesHub]:
    place = tmp_path_factory.mktemp("hub")
    with ClusterLab(plane) as lab, running_kubernetes_hub(lab, place) as hub:
        yield hub


@pytest.fixture
def kubernetes_hub(hub_on_kubernetes: KubernetesHub) -> Iterator[KubernetesHub]:
    yield hub_on_kubernetes
    hub_on_kubernetes.stop_all()
