"""Each right of the chart is used by some action, and no action is forbidden a request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chart.rights import Right, full_kubeconfig, kubeconfig_without, rights_of
from chart.service_actions import ACTIONS, EXEC_RIGHTS, KUBEFLOW_ACTIONS, Action, Stage, run_program
from control_plane.kubelet import Kubelet
from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane
from runai.hub_service.clusters.kubernetes.client.access_rights import RIGHTS
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError
from runai.hub_service.clusters.kubernetes.kubernetes_cluster import KubernetesCluster
from waiting import eventually_async

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

ACTION_TIMEOUT_S = 150
"""Some actions install a kind, and remove it."""
USED_RIGHTS = {right for rights in ACTIONS.values() for right in rights}
ACTION_PARAMS = [
    pytest.param(
        act, marks=[pytest.mark.kubeflow] if act in KUBEFLOW_ACTIONS else [], id=act.__name__
    )
    for act in ACTIONS
]
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def required_right(method: str, path: str, *, watches: bool) -> str:
    """Return the right that a request needs, such as `"patch pods/status"`."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    read_verb = "get" if len(parts) > 1 else "watch" if watches else "list"
    resource = "/".join([parts[0], *parts[2:]])
    return f"{VERBS.get(method, read_verb)} {resource}"


class RecordingApi(Api):
    """An API client that records requests, and refusals (403), of all callers."""

    forbidden: asyncio.Event
    refused: list[str]
    used: set[str]

    async def _send(self, method: str, path: str, body: Any, query: Any, *options: Any) -> Any:
        self.used.add(required_right(method, path, watches="watch" in query))
        reply = await super()._send(method, path, body, query, *options)
        if reply.status == 403:
            self.refused.append(f"{method} {path}")
            self.forbidden.set()
        return reply

    async def channels(self, path: str, query: Any) -> Any:
        try:
            return await super().channels(path, query)
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
async def run_action(
    rights: Path, action: Action, lab: ClusterLab, kubelet: Kubelet
) -> AsyncIterator[RecordingApi]:
    """Run an action until it is done or a request is forbidden."""
    node, project = f"gpu-{lab.number}", f"vision-{lab.number}"
    lab.node(node, gpus=2, status=kubelet.status)
    lab.project(project, quota=2)
    async with await RecordingApi.connect(str(rights)) as api:
        api.forbidden, api.refused, api.used = asyncio.Event(), [], set()
        cluster = KubernetesCluster(api, namespace=lab.namespace.name, image="example/train")
        running = asyncio.create_task(cluster.run())
        action_task = asyncio.ensure_future(
            action(Stage(api, cluster, lab, kubelet, node, project))
        )
        refusal = asyncio.create_task(api.forbidden.wait())
        async with asyncio.timeout(ACTION_TIMEOUT_S):
            await asyncio.wait({action_task, refusal}, return_when=asyncio.FIRST_COMPLETED)
        failed = action_task.done() and action_task.exception()
        try:
            if failed and not api.refused:
                raise failed
            yield api
        finally:
            for task in (action_task, refusal, running):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task


def test_doctor_checks_exactly_the_rights_that_the_chart_always_grants():
    checked_rights = {Right(right.role, right.resource, right.verb) for right in RIGHTS}

    assert checked_rights == rights_of("notebooks") - set(EXEC_RIGHTS)
    assert len(RIGHTS) == len(checked_rights)


def test_every_right_of_the_chart_is_used_by_an_action():
    assert rights_of("notebooks") == USED_RIGHTS | set(EXEC_RIGHTS)


@pytest.mark.parametrize("action", ACTION_PARAMS)
async def test_kubernetes_action_uses_its_listed_rights_and_is_refused_no_request(
    plane: ControlPlane, lab: ClusterLab, kubelet: Kubelet, action: Action
):
    expected = {f"{right.verb} {right.resource}" for right in ACTIONS[action]}

    async with run_action(full_kubeconfig(plane, lab.namespace.name), action, lab, kubelet) as api:
        assert api.refused == []
        await eventually_async(lambda: expected <= api.used, what=f"{expected} are used")

    assert api.refused == []


async def test_exec_rights_suffice_to_run_a_program(
    plane: ControlPlane, lab: ClusterLab, kubelet: Kubelet
):
    async with run_action(
        full_kubeconfig(plane, lab.namespace.name), run_program, lab, kubelet
    ) as api:
        assert api.refused == []


@pytest.mark.parametrize("right", EXEC_RIGHTS, ids=str)
async def test_program_is_refused_without_either_exec_right(
    plane: ControlPlane, lab: ClusterLab, kubelet: Kubelet, right: Right
):
    """One request needs both: the API server checks the second one by itself."""
    rights = kubeconfig_without(plane, lab.namespace.name, right)

    async with run_action(rights, run_program, lab, kubelet) as api:
        assert api.refused
