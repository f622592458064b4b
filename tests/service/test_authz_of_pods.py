"""Who may do what, on a real JupyterHub over a real API server: by the tokens that pods have there.

An agent's and a worker's are their pods' own; the other roles are on the hub of one machine
(test_authz_on_hub.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest

from authz import ROWS, asked, expected, judged, name_of
from control_plane.agents import agent_token
from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane
from control_plane.processes import NODE
from kubernetes_hub import KubernetesHub, running_kubernetes_hub
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.clusters.kubernetes.elastic_pods import AUDIENCE

pytestmark = [pytest.mark.hub, pytest.mark.kubernetes, pytest.mark.timeout(600)]


@dataclass
class Stage:
    """A platform with a job of ana's, and who asks from pods; no worker's job is elastic."""

    hub: KubernetesHub
    clients: dict[str, httpx.Client]


@pytest.fixture(scope="module")
def stage(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    around = ClusterLab(plane)
    place = tmp_path_factory.mktemp("hub")
    with running_kubernetes_hub(around, place) as hub, ExitStack() as opened:
        tokens = {
            "agent": agent_token(plane, NODE),
            "worker": agent_token(plane, NODE, audience=AUDIENCE),
        }
        clients = {}
        for role, token in tokens.items():
            headers = {"Authorization": f"Bearer {opened.enter_context(token)}"}
            client = httpx.Client(
                base_url=f"{hub.http.base_url}/services/runai/", headers=headers, timeout=60
            )
            clients[role] = opened.enter_context(client)
        with hub.client() as its_own:
            # More GPUs than there are: it waits all the while.
            wish = SubmitRequest(
                name="exp1",
                project="vision",
                owner="ana",
                gpus=2,
                image="example/train",
                command=["true"],
            )
            its_own.submit(wish)
            yield Stage(hub, clients)
            assert its_own.workload("vision/exp1").state == "queued"
            its_own.delete("vision/exp1")
    around.remove()


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_pods_do_what_the_table_says(stage: Stage, row):
    outcomes = {}
    for role, client in stage.clients.items():
        with client.stream(**asked(row, node=NODE)) as reply:
            outcomes[role] = judged(reply)

    assert outcomes == {role: expected(row, role) for role in outcomes}


def test_they_are_known_as_who_they_are(stage: Stage):
    told = {role: client.get("api/v1/whoami").json() for role, client in stage.clients.items()}

    assert {role: (who["kind"], who["admin"]) for role, who in told.items()} == {
        "agent": ("agent", False),
        "worker": ("worker", False),
    }
