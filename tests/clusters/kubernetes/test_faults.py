"""Faults between the service and the API server: each ends in the right state."""

from __future__ import annotations

import pytest

from clusters.kubernetes.sharing_world import sentence
from control_plane.faults import FaultyServer
from control_plane.objects import pod
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]


def bound(lab) -> set[str]:
    return {p["metadata"]["name"] for p in lab.namespace.pods() if "nodeName" in p["spec"]}


@pytest.mark.parametrize("status", [pytest.param(s, id=str(s)) for s in (409, 429, 500)])
def test_pod_is_bound_after_the_api_server_refused_its_first_binding(
    ready, rights, eventually, status
):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig):
        server.refuse("POST", "/binding", status=status)
        ready.namespace.create(pod("notebook", project="vision"))
        eventually(lambda: bound(ready) == {"notebook"}, what="it is bound")


def test_throttled_pod_binding_is_retried_after_the_api_servers_delay(ready, rights, eventually):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        server.refuse("POST", "/binding", status=429, times=3, wait="0")
        ready.namespace.create(pod("notebook", project="vision"))
        eventually(lambda: bound(ready) == {"notebook"}, what="it is bound")

    assert scheduler.refused == []


def test_scheduler_does_not_repeat_a_pod_binding_after_a_lost_api_response(
    ready, rights, eventually
):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        eventually(lambda: scheduler.cycles, what="it watches")
        server.lose_answer("POST", "/binding")
        for name in ("one", "two", "three"):
            ready.namespace.create(pod(name, project="vision", gpus=1))
        eventually(lambda: len(bound(ready)) == 2, what="both GPUs are in use")
        eventually(
            lambda: all(sentence(p) for p in ready.namespace.pods() if "nodeName" not in p["spec"]),
            what="the third waits",
        )

    assert len(bound(ready)) == 2
    bindings = [path for method, path in server.requests if path.endswith("/binding")]
    assert len(bindings) == 2


def test_expired_pod_watch_causes_exactly_one_new_list_request(ready, rights, eventually):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        eventually(lambda: scheduler.cycles, what="it watches")
        lists = _lists(server)
        server.refuse("GET", "/pods?watch=1", status=410)
        server.refuse("GET", "pods?resourceVersion", status=410)
        server.cut()
        ready.namespace.create(pod("notebook", project="vision"))
        eventually(lambda: bound(ready) == {"notebook"}, what="it is bound")

    assert _lists(server) == lists + 1


def test_scheduler_sees_changes_made_during_an_api_server_outage(ready, rights, eventually):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        ready.namespace.create(pod("before", project="vision"))
        eventually(lambda: bound(ready) == {"before"}, what="the first is bound")
        server.is_down = True
        server.cut()
        ready.namespace.create(pod("meanwhile", project="vision"))
        ready.namespace.delete("before")
        ready.plane.restart("kube-apiserver")
        lists = scheduler.cluster.cache.informers.pods.lists
        server.is_down = False
        eventually(lambda: "meanwhile" in bound(ready), what="the second is bound")
        # The API server starts with a newer version than the last one seen: its 410 is real.
        eventually(
            lambda: scheduler.cluster.cache.informers.pods.lists > lists,
            what="the list is read again",
        )

    assert scheduler.failed is None


def _lists(server) -> int:
    return sum("/api/v1/pods?limit" in path for _method, path in server.requests)
