"""Each right of the chart is used by some action, and no action is forbidden a request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chart.acts import ACTS, EXEC, OF_KUBEFLOW, Act, Stage, runs_a_program
from chart.rights import Right, rights_of, whole, without
from control_plane.kubelet import Kubelet
from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane
from runai.hub_service.clusters.kubernetes.client.access_rights import RIGHTS
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError
from runai.hub_service.clusters.kubernetes.driver import KubernetesCluster
from waiting import eventually_async

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

WITHIN_S = 150
"""Some actions install a kind, and remove it."""
GIVEN = {right for rights in ACTS.values() for right in rights}
DEEDS = [
    pytest.param(act, marks=[pytest.mark.kubeflow] if act in OF_KUBEFLOW else [], id=act.__name__)
    for act in ACTS
]
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def used(method: str, path: str, *, watches: bool) -> str:
    """Return the right that a request needs, such as `"patch pods/status"`."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    of_one = "get" if len(parts) > 1 else "watch" if watches else "list"
    what = "/".join([parts[0], *parts[2:]])
    return f"{VERBS.get(method, of_one)} {what}"


class Listening(Api):
    """An API client that records requests, and refusals (403), of all callers."""

    forbidden: asyncio.Event
    refused: list[str]
    used: set[str]

    async def _send(self, method: str, path: str, body: Any, query: Any, *how: Any) -> Any:
        self.used.add(used(method, path, watches="watch" in query))
        answer = await super()._send(method, path, body, query, *how)
        if answer.status == 403:
            self.refused.append(f"{method} {path}")
            self.forbidden.set()
        return answer

    async def channels(self, path: str, asked: Any) -> Any:
        try:
            return await super().channels(path, asked)
        except ApiError as refused:
            if refused.status == 403:
                self.refused.append(f"GET {path}")
                self.forbidden.set()
            raise


@pytest.fixture(scope="module")
def kubelet():
    with Kubelet() as started:
        yield started


@contextlib.asynccontextmanager
async def played(
    rights: Path, act: Act, lab: ClusterLab, kubelet: Kubelet
) -> AsyncIterator[Listening]:
    """Run an action until it is done or a request is forbidden."""
    node, project = f"gpu-{lab.number}", f"vision-{lab.number}"
    lab.node(node, gpus=2, status=kubelet.status)
    lab.project(project, quota=2)
    async with await Listening.connect(str(rights)) as api:
        api.forbidden, api.refused, api.used = asyncio.Event(), [], set()
        cluster = KubernetesCluster(api, namespace=lab.namespace.name, image="example/train")
        running = asyncio.create_task(cluster.run())
        acting = asyncio.ensure_future(act(Stage(api, cluster, lab, kubelet, node, project)))
        refusal = asyncio.create_task(api.forbidden.wait())
        async with asyncio.timeout(WITHIN_S):
            await asyncio.wait({acting, refusal}, return_when=asyncio.FIRST_COMPLETED)
        failed = acting.done() and acting.exception()
        try:
            if failed and not api.refused:
                raise failed
            yield api
        finally:
            for task in (acting, refusal, running):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task


def test_doctor_asks_for_each_right_that_the_chart_always_gives_and_for_no_other():
    asked = {Right(right.role, right.resource, right.verb) for right in RIGHTS}

    assert asked == rights_of("notebooks") - set(EXEC)
    assert len(RIGHTS) == len(asked)


def test_the_chart_gives_no_right_that_nothing_is_done_with():
    assert rights_of("notebooks") == GIVEN | set(EXEC)


@pytest.mark.parametrize("act", DEEDS)
async def test_action_uses_its_rights_and_is_refused_no_request(
    plane: ControlPlane, lab: ClusterLab, kubelet: Kubelet, act: Act
):
    wanted = {f"{right.verb} {right.resource}" for right in ACTS[act]}

    async with played(whole(plane, lab.namespace.name), act, lab, kubelet) as api:
        assert api.refused == []
        await eventually_async(lambda: wanted <= api.used, what=f"{wanted} are used")

    assert api.refused == []


async def test_a_program_is_run_with_all_of_them(
    plane: ControlPlane, lab: ClusterLab, kubelet: Kubelet
):
    async with played(whole(plane, lab.namespace.name), runs_a_program, lab, kubelet) as api:
        assert api.refused == []


@pytest.mark.parametrize("right", EXEC, ids=str)
async def test_no_program_is_run_without_it(
    plane: ControlPlane, lab: ClusterLab, kubelet: Kubelet, right: Right
):
    """One request needs both: the API server checks the second one by itself."""
    rights = without(plane, lab.namespace.name, right)

    async with played(rights, runs_a_program, lab, kubelet) as api:
        assert api.refused
