"""Each right of the chart is needed: what needs it works with all of them, and not without it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from chart.acts import ACTS, Act, Stage
from chart.exec_acts import EXEC_ACTS
from chart.kubeflow_acts import KUBEFLOW_ACTS
from chart.rights import Right, rights_of, whole, without
from chart.volume_acts import VOLUME_ACTS
from control_plane.kubelet import Kubelet
from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane
from runai.hub_service.clusters.kubernetes.api import Api, ApiError
from runai.hub_service.clusters.kubernetes.cluster import KubernetesCluster
from runai.hub_service.clusters.kubernetes.rights import RIGHTS

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

WITHIN_S = 150
"""Some acts install a kind, and remove it."""
EVERY = {**ACTS, **VOLUME_ACTS, **EXEC_ACTS, **KUBEFLOW_ACTS}
PROVED = [
    pytest.param(
        right, marks=[pytest.mark.kubeflow] if right in KUBEFLOW_ACTS else [], id=str(right)
    )
    for right in EVERY
]
DEEDS = [
    pytest.param(
        act,
        marks=[pytest.mark.kubeflow] if act in KUBEFLOW_ACTS.values() else [],
        id=getattr(act, "__name__", "takes_over"),
    )
    for act in dict.fromkeys(EVERY.values())
]


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

    async def channels(self, path: str, asked: Any) -> Any:
        try:
            return await super().channels(path, asked)
        except ApiError as refused:
            if refused.status == 403:
                self.asked.append(f"GET {path}")
                self.forbidden.set()
            raise


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


def test_doctor_asks_for_each_right_that_the_chart_always_gives_and_for_no_other():
    asked = {Right(right.role, right.resource, right.verb) for right in RIGHTS}

    assert asked == rights_of("notebooks") - set(EXEC_ACTS)
    assert len(RIGHTS) == len(asked)


def test_every_right_has_its_proof():
    assert rights_of("notebooks") == set(EVERY)


@pytest.mark.parametrize("right", PROVED)
async def test_without_it_something_cannot_be_done(
    plane: ControlPlane, lab: ClusterLab, kubelet: Kubelet, right: Right
):
    rights = without(plane, lab.namespace.name, right)

    assert await forbidden(rights, EVERY[right], lab, kubelet)


@pytest.mark.parametrize("act", DEEDS)
async def test_with_all_of_them_it_can(
    plane: ControlPlane, lab: ClusterLab, kubelet: Kubelet, act: Act
):
    rights = whole(plane, lab.namespace.name)

    assert await forbidden(rights, act, lab, kubelet) == []
