"""What may go wrong between us and the API server, and ends in the right state all the same."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from control_plane.faults import FaultyServer
from control_plane.objects import pod
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]


@pytest.fixture
def ready(lab):
    lab.node("gpu-0", gpus=2)
    lab.project("vision", quota=2)
    return lab


def bound(lab) -> set[str]:
    return {p["metadata"]["name"] for p in lab.namespace.pods() if "nodeName" in p["spec"]}


@pytest.mark.parametrize("status", [pytest.param(s, id=str(s)) for s in (409, 429, 500, 503)])
def test_a_binding_that_is_refused_is_decided_again(ready, rights, eventually, status):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig):
        server.refuse("POST", "/binding", status=status)
        ready.namespace.create(pod("notebook", project="vision"))
        eventually(lambda: bound(ready) == {"notebook"}, what="it is bound")


def test_a_throttled_request_is_made_again_when_the_server_says(ready, rights, eventually):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        server.refuse("POST", "/binding", status=429, times=3, wait="0")
        ready.namespace.create(pod("notebook", project="vision"))
        eventually(lambda: bound(ready) == {"notebook"}, what="it is bound")

    assert scheduler.refused == []


def test_a_priority_level_that_takes_nothing_holds_bindings_up_and_loses_none(
    ready, rights, eventually
):
    """The API server's own throttling, tightened to nothing: its 429s are real."""
    numbers = itertools.count()
    with Scheduler(rights) as scheduler:
        eventually(lambda: scheduler.cycles, what="it watches")
        with _no_bindings(ready.plane):

            def is_throttled() -> bool:
                # It takes a moment until the API server acts by it, and then takes one at a time.
                if len(bound(ready)) == len(ready.namespace.pods()):
                    some_at_once()
                return any("oo many requests" in text.lower() for text in scheduler.refused)

            def some_at_once() -> None:
                """Let the scheduler know of some that wait, before they may go anywhere."""
                _set_closed(ready, closed=True)
                for _ in range(10):
                    ready.namespace.create(pod(f"n-{next(numbers)}", 0, project="vision"))
                eventually(lambda: all(_told(ready)), what="all know why they wait")
                _set_closed(ready, closed=False)

            eventually(is_throttled, what="a binding is refused")
        eventually(
            lambda: len(bound(ready)) == len(ready.namespace.pods()),
            within=60,
            what="all are bound",
        )


def test_a_binding_whose_answer_was_lost_is_not_made_twice(ready, rights, eventually):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        eventually(lambda: scheduler.cycles, what="it watches")
        server.lose_answer("POST", "/binding")
        for name in ("one", "two", "three"):
            ready.namespace.create(pod(name, project="vision", gpus=1))
        eventually(lambda: len(bound(ready)) == 2, what="both GPUs are in use")
        eventually(
            lambda: all(
                _sentence(p) for p in ready.namespace.pods() if "nodeName" not in p["spec"]
            ),
            what="the third waits",
        )

    assert len(bound(ready)) == 2
    bindings = [path for method, path in server.requests if path.endswith("/binding")]
    assert len(bindings) == 2


def test_connections_that_break_are_made_again(ready, rights, eventually):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        eventually(lambda: scheduler.cycles, what="it watches")
        server.cut()
        ready.namespace.create(pod("notebook", project="vision"))
        eventually(lambda: bound(ready) == {"notebook"}, what="it is bound")


def test_a_watch_that_is_too_old_is_listed_again(ready, rights, eventually):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        eventually(lambda: scheduler.cycles, what="it watches")
        lists = _lists(server)
        server.refuse("GET", "/pods?watch=1", status=410)
        server.refuse("GET", "pods?resourceVersion", status=410)
        server.cut()
        ready.namespace.create(pod("notebook", project="vision"))
        eventually(lambda: bound(ready) == {"notebook"}, what="it is bound")

    assert _lists(server) == lists + 1


def test_what_happened_while_the_server_was_away_is_seen(ready, rights, eventually):
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        ready.namespace.create(pod("before", project="vision"))
        eventually(lambda: bound(ready) == {"before"}, what="the first is bound")
        server.is_down = True
        server.cut()
        ready.namespace.create(pod("meanwhile", project="vision"))
        ready.namespace.delete("before")
        ready.plane.restart("kube-apiserver")
        lists = scheduler.cluster._pods.lists
        server.is_down = False
        eventually(lambda: "meanwhile" in bound(ready), what="the second is bound")
        # It has begun anew after what we saw last: its 410 is real.
        eventually(lambda: scheduler.cluster._pods.lists > lists, what="the list is read again")

    assert scheduler.failed is None


def test_a_server_that_restarts_in_mid_cycle_loses_nothing(ready, rights, eventually):
    with Scheduler(rights):
        ready.namespace.create(pod("one", project="vision"))
        ready.plane.restart("kube-apiserver")
        ready.namespace.create(pod("two", project="vision"))
        eventually(lambda: bound(ready) == {"one", "two"}, what="both are bound")


def test_a_scheduler_that_is_killed_goes_on_where_it_was(ready, rights, eventually):
    with Scheduler(rights):
        ready.namespace.create(pod("one", project="vision"))
        eventually(lambda: bound(ready) == {"one"}, what="the first is bound")
    ready.namespace.create(pod("two", project="vision"))
    ready.namespace.create(pod("three", project="vision"))

    with Scheduler(rights):
        eventually(lambda: len(bound(ready)) == 2, what="the GPU that was free is in use")
        waits = eventually(
            lambda: [s for p in ready.namespace.pods() if (s := _sentence(p))],
            what="the last one waits",
        )

    assert len(waits) == 1


def _set_closed(ready, *, closed: bool) -> None:
    node, kind = "/api/v1/nodes/gpu-0", "application/merge-patch+json"
    ready.plane.request("PATCH", node, {"spec": {"unschedulable": closed}}, content_type=kind)


def _told(ready) -> list[str]:
    """Return why each pod that waits does, "" for those who were not told."""
    return [_sentence(p) for p in ready.namespace.pods() if "nodeName" not in p["spec"]]


@contextlib.contextmanager
def _no_bindings(plane):
    """Have the API server take no bindings of the scheduler's account."""
    path = "/apis/flowcontrol.apiserver.k8s.io/v1"
    nothing = {"nominalConcurrencyShares": 0, "limitResponse": {"type": "Reject"}}
    level = {"type": "Limited", "limited": nothing}
    account = {"name": "runai-scheduler", "namespace": "runai"}
    rule = {
        "subjects": [{"kind": "ServiceAccount", "serviceAccount": account}],
        "resourceRules": [
            {"verbs": ["create"], "apiGroups": [""], "resources": ["pods/binding"]}
            | {"namespaces": ["*"]}
        ],
    }
    schema = {"priorityLevelConfiguration": {"name": "nothing"}, "matchingPrecedence": 2}
    made = {
        "prioritylevelconfigurations": level,
        "flowschemas": {**schema, "rules": [rule]},
    }
    for kind, spec in made.items():
        plane.request("POST", f"{path}/{kind}", {"metadata": {"name": "nothing"}, "spec": spec})
    try:
        yield
    finally:
        for kind in reversed(made):
            plane.request("DELETE", f"{path}/{kind}/nothing")


def _sentence(found) -> str:
    conditions = found["status"].get("conditions", [])
    return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")


def _lists(server) -> int:
    return sum("/api/v1/pods?limit" in path for _method, path in server.requests)
