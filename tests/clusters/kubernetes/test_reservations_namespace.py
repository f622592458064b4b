"""The namespace of reservation pods was deleted: its waiting users and the admin get a message."""

from __future__ import annotations

import pytest

from clusters.kubernetes.gpu_sharing import devices_of, fraction_pod, wait_message
from control_plane.chart import install
from control_plane.plane import ControlPlane
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

NAMESPACE = "/api/v1/namespaces/runai-reservation"


def namespace_exists(plane: ControlPlane) -> bool:
    return plane.request_existing("GET", NAMESPACE) is not None


@pytest.fixture
def without_namespace(two_gpus, eventually):
    """Return a control plane without the namespace; it is restored afterwards, for other tests."""
    plane = two_gpus.plane
    plane.request("DELETE", NAMESPACE)
    eventually(lambda: not namespace_exists(plane), what="the namespace is gone")
    yield plane
    install(plane)


def test_gpu_fraction_pod_names_missing_reservations_namespace_until_helm_upgrade(
    two_gpus, without_namespace, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    work.create(fraction_pod("one", "0.5"))

    with Scheduler(kubeconfig):
        until(
            lambda: "namespace runai-reservation is not there" in wait_message(work.pod("one")),
            what="the pod names what is missing",
        )
        assert "helm upgrade" in wait_message(work.pod("one"))
        install(without_namespace)
        until(lambda: devices_of(work), what="the pod has its half")
