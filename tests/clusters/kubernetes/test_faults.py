"""Faults between the service and the API server: each ends in the right state."""

from __future__ import annotations

import pytest

from clusters.kubernetes.gpu_sharing import wait_message
from control_plane.faults import FaultyServer
from control_plane.objects import pod
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]


def bound(lab) -> set[str]:
    return {p["metadata"]["name"] for p in lab.namespace.pods() if "nodeName" in p["spec"]}


@pytest.mark.parametrize("status", [pytest.param(s, id=str(s)) for s in (409, 429, 500)])
def test_pod_is_bound_after_the_api_server_refused_its_first_binding(
    two_gpus, kubeconfig, eventually, status
):
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig):
        server.refuse("POST", "/binding", status=status)
        two_gpus.namespace.create(pod("notebook", project="vision"))
        eventually(lambda: bound(two_gpus) == {"notebook"}, what="the pod is bound")


def test_throttled_pod_binding_is_retried_after_the_api_servers_delay(
    two_gpus, kubeconfig, eventually
):
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig) as scheduler:
        server.refuse("POST", "/binding", status=429, times=3, wait="0")  # Retry-After: 0 s
        two_gpus.namespace.create(pod("notebook", project="vision"))
        eventually(lambda: bound(two_gpus) == {"notebook"}, what="the pod is bound")

    assert scheduler.refused == []


def test_scheduler_does_not_repeat_a_pod_binding_after_a_lost_api_response(
    two_gpus, kubeconfig, eventually
):
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig) as scheduler:
        eventually(lambda: scheduler.cycles, what="the scheduler watches")
        server.lose_answer("POST", "/binding")
        for name in ("one", "two", "three"):
            two_gpus.namespace.create(pod(name, project="vision", gpus=1))
        eventually(lambda: len(bound(two_gpus)) == 2, what="both GPUs are in use")
        eventually(
            lambda: all(
                wait_message(p) for p in two_gpus.namespace.pods() if "nodeName" not in p["spec"]
            ),
            what="the third waits",
        )

    assert len(bound(two_gpus)) == 2
    bindings = [path for method, path in server.requests if path.endswith("/binding")]
    assert len(bindings) == 2


def test_expired_pod_watch_causes_exactly_one_new_list_request(two_gpus, kubeconfig, eventually):
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig) as scheduler:
        eventually(lambda: scheduler.cycles, what="the scheduler watches")
        lists_before = _list_requests(server)
        server.refuse("GET", "/pods?watch=1", status=410)
        server.refuse("GET", "pods?resourceVersion", status=410)
        server.cut()
        two_gpus.namespace.create(pod("notebook", project="vision"))
        eventually(lambda: bound(two_gpus) == {"notebook"}, what="the pod is bound")

    assert _list_requests(server) == lists_before + 1


def test_scheduler_sees_changes_made_during_an_api_server_outage(two_gpus, kubeconfig, eventually):
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig) as scheduler:
        two_gpus.namespace.create(pod("before", project="vision"))
        eventually(lambda: bound(two_gpus) == {"before"}, what="the first is bound")
        server.is_down = True
        server.cut()
        two_gpus.namespace.create(pod("meanwhile", project="vision"))
        two_gpus.namespace.delete("before")
        two_gpus.plane.restart("kube-apiserver")
        lists_before = scheduler.cluster.cache.informers.pods.lists
        server.is_down = False
        eventually(lambda: "meanwhile" in bound(two_gpus), what="the second is bound")
        # The API server starts with a newer version than the last one seen: its 410 is real.
        eventually(
            lambda: scheduler.cluster.cache.informers.pods.lists > lists_before,
            what="the list is read again",
        )

    assert scheduler.failed is None


def _list_requests(server) -> int:
    return sum("/api/v1/pods?limit" in path for _method, path in server.requests)
