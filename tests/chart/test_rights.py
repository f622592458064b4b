"""Each right of the chart is needed: what needs it works with all of them, and not without it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from chart.acts import ACTS, Act, Stage
from chart.rights import Right, rights_of, whole, without
from control_plane.kubelet import Kubelet
from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane
from runai.hub_service.clusters.kubernetes.api import Api
from runai.hub_service.clusters.kubernetes.cluster import KubernetesCluster

pytestmark = pytest.mark.kubernetes

WITHIN_S = 60


class Listening(Api):
    """Notes what the API server forbids, whoever asks and whatever they make of it."""

    forbidden: asyncio.Event
    asked: list[str]

    async def _send(self, method: str, path: str, *how: Any) -> Any:
        answer = await super()._send(method, path, *how)
        if answer.status == 403:
            self.asked.append(f"{method} {path}")
            self.forbidden.set()
        return answer


@pytest.fixture(scope="module")
def kubelet():
    with Kubelet() as started:
        yield started


async def forbidden(rights: Path, act: Act, lab: ClusterLab, kubelet: Kubelet) -> list[str]:
    """Let it act; return what it was not allowed to do."""
    node, project = f"gpu-{lab.number}", f"vision-{lab.number}"
    lab.node(node, gpus=2, status=kubelet.status)
    lab.project(project, quota=2)
    async with await Listening.connect(str(rights)) as api:
        api.forbidden, api.asked = asyncio.Event(), []
        cluster = KubernetesCluster(api, namespace=lab.namespace.name, image="example/train")
        running = asyncio.create_task(cluster.run())
        stage = Stage(api, cluster, lab, kubelet, node, project)
        acting = asyncio.ensure_future(act(stage))
        refusal = asyncio.create_task(api.forbidden.wait())
        async with asyncio.timeout(WITHIN_S):
            await asyncio.wait({acting, refusal}, return_when=asyncio.FIRST_COMPLETED)
        failed = acting.done() and acting.exception()
        for task in (acting, refusal, running):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        if failed and not api.asked:
            raise failed
        return api.asked


def test_every_right_has_its_proof():
    assert rights_of("notebooks") == set(ACTS)


@pytest.mark.parametrize("right", ACTS, ids=str)
async def test_without_it_something_cannot_be_done(
    plane: ControlPlane, lab: ClusterLab, kubelet: Kubelet, right: Right
):
    rights = without(plane, lab.namespace.name, right)

    assert await forbidden(rights, ACTS[right], lab, kubelet)


@pytest.mark.parametrize(
    "act", [*dict.fromkeys(ACTS.values())], ids=lambda act: getattr(act, "__name__", "takes_over")
)
async def test_with_all_of_them_it_can(
    plane: ControlPlane, lab: ClusterLab, kubelet: Kubelet, act: Act
):
    rights = whole(plane, lab.namespace.name)

    assert await forbidden(rights, act, lab, kubelet) == []
