"""The namespace of reservation pods was deleted: its waiting users and the admin get a message."""

from __future__ import annotations

import pytest

from clusters.kubernetes.sharing_world import half, sentence, visible
from control_plane.calls import ApiRefused
from control_plane.chart import install
from control_plane.plane import ControlPlane
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

NAMESPACE = "/api/v1/namespaces/runai-reservation"


def namespace_exists(plane: ControlPlane) -> bool:
    try:
        plane.request("GET", NAMESPACE)
    except ApiRefused as refused:
        if refused.status == 404:
            return False
        raise
    return True


@pytest.fixture
def without_namespace(ready, eventually):
    """Return a control plane without the namespace; it is restored afterwards, for other tests."""
    plane = ready.plane
    plane.request("DELETE", NAMESPACE)
    eventually(lambda: not namespace_exists(plane), what="the namespace is gone")
    yield plane
    install(plane)


def test_gpu_fraction_pod_names_missing_reservations_namespace_until_helm_upgrade(
    ready, without_namespace, rights, plugin, until
):
    work = ready.namespace
    work.create(half("one"))

    with Scheduler(rights):
        until(
            lambda: "namespace runai-reservation is not there" in sentence(work.pod("one")),
            what="it is told what is missing",
        )
        assert "helm upgrade" in sentence(work.pod("one"))
        install(without_namespace)
        until(lambda: visible(work), what="it has its half")
