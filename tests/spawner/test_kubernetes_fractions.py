"""Half a GPU for a notebook on Kubernetes: two share one device, and each sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kubernetes_hub import KubernetesHub, sentence

pytestmark = [pytest.mark.hub, pytest.mark.kubernetes, pytest.mark.timeout(900)]


def test_two_halves_share_a_device_and_a_third_waits_until_one_stops(
    kubernetes_hub: KubernetesHub, eventually: Callable[..., Any]
):
    hub = kubernetes_hub
    hub.start_server("ana", project="vision", gpus="½")
    hub.start_server("bo", project="vision", gpus="0.5")
    seen = [hub.environment(user)["NVIDIA_VISIBLE_DEVICES"] for user in ("ana", "bo")]
    hub.spawn("cy", project="vision", gpus="50%").raise_for_status()
    with hub.progress("cy") as events:
        waiting = eventually(lambda: sentence(events, "Waiting: "))
        held = {user: session.allocated for user, session in hub.sessions().items()}
        hub.stop_server("ana")
        hub.wait_ready("cy")

    assert seen == ["GPU-0", "GPU-0"]
    assert held == {"ana": 0.5, "bo": 0.5, "cy": 0}
    assert waiting.startswith("Waiting: vision uses 1 of its 1 build GPU: ana 0.5, bo 0.5")
    assert hub.environment("cy")["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
    hub.stop_all()
    reservations = "/api/v1/namespaces/runai-reservation/pods"
    eventually(lambda: not hub.lab.plane.request("GET", reservations)["items"])
