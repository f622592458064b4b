"""What others' controllers make for our scheduler: bound, evicted for an owner, made again.

Deployment, StatefulSet,   each of their pods is a workload of its own
DaemonSet
runai/gang: "true"         the pods of others than Jobs are told to be one
"""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.objects import pod
from control_plane.plane import ApiRefused, ControlPlane
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]

KINDS = {
    "DaemonSet": "daemonsets",
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
}


def served(kind: str, replicas: int, **labels: str) -> dict[str, Any]:
    """Return what makes `replicas` pods of one GPU each, that may be stopped for an owner."""
    own = {"app": "served", "runai/kind": "train", **labels}
    template = pod("served", project="patty", labels=own)
    del template["metadata"]["name"]
    named = {"serviceName": "served"} if kind == "StatefulSet" else {}
    # One on each node, and nobody says how many.
    counted = {} if kind == "DaemonSet" else {"replicas": replicas}
    return {
        "metadata": {"name": "served"},
        "spec": {
            **counted,
            "selector": {"matchLabels": {"app": "served"}},
            "template": template,
            **named,
        },
    }


@pytest.fixture
def adopt(lab, eventually):
    """Return a function that makes one; it is gone with its pods before the lab is emptied."""
    made: list[str] = []

    def make(kind: str, what: dict[str, Any]) -> None:
        path = f"/apis/apps/v1/namespaces/{lab.namespace.name}/{KINDS[kind]}"
        lab.plane.request("POST", path, what)
        made.append(f"{path}/{what['metadata']['name']}")

    yield make
    for path in made:
        lab.plane.request("DELETE", path, {"propagationPolicy": "Foreground"})
    for path in made:
        eventually(lambda path=path: _is_gone(lab.plane, path), what=f"{path} is gone")


@pytest.mark.parametrize("kind", ["DaemonSet", "Deployment", "StatefulSet"])
def test_it_gives_way_to_an_owner_and_comes_again(lab, rights, eventually, adopt, kind):
    lab.node("gpu-0", gpus=1)
    lab.node("gpu-1", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty", quota=1)
    work = lab.namespace
    adopt(kind, served(kind, 2))

    with Scheduler(rights):
        before = eventually(lambda: _both(_bound(work)), what="both of patty's run")
        work.create(pod("bobs-notebook", project="bob"))
        eventually(lambda: work.node_of("bobs-notebook"), what="bob has his GPU")
        waits = eventually(lambda: _waiting(work), what="one that was made again says why it waits")
        assert waits.isdisjoint(before)
        assert len(_bound(work) & before) == 1
        work.delete("bobs-notebook")
        after = eventually(lambda: _both(_bound(work)), what="both run again")

    assert len(after & before) == 1
    assert waits <= after


def test_what_says_nothing_of_its_kind_is_a_session_that_stays(lab, rights, eventually, adopt):
    lab.node("gpu-0", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty", quota=1)
    work = lab.namespace
    session = served("Deployment", 1)
    del session["spec"]["template"]["metadata"]["labels"]["runai/kind"]
    adopt("Deployment", session)

    with Scheduler(rights):
        before = eventually(lambda: _bound(work), what="it runs")
        work.create(pod("bobs-notebook", project="bob"))
        eventually(lambda: _waiting(work), what="bob's says why it waits")

    assert _bound(work) == before


def test_a_gang_that_is_no_job_is_told_to_become_one(lab, rights, eventually, adopt):
    lab.node("gpu-0", gpus=2)
    lab.project("patty", quota=2)
    work = lab.namespace
    adopt("StatefulSet", served("StatefulSet", 2, **{"runai/gang": "true"}))

    with Scheduler(rights):
        (first, *_) = eventually(lambda: _sentences(work), what="its pods say why they wait")

    assert "use a Job" in first
    assert _bound(work) == set()


def _is_gone(plane: ControlPlane, path: str) -> bool:
    try:
        plane.request("GET", path)
    except ApiRefused as refused:
        if refused.status == 404:
            return True
        raise
    return False


def _both(uids: set[str]) -> set[str]:
    return uids if len(uids) == 2 else set()


def _bound(namespace: Any) -> set[str]:
    """Return the UIDs of pods that are bound, and neither leaving nor of bob."""
    return {
        p["metadata"]["uid"]
        for p in namespace.pods()
        if "nodeName" in p["spec"]
        and "deletionTimestamp" not in p["metadata"]
        and p["metadata"]["name"] != "bobs-notebook"
    }


def _waiting(namespace: Any) -> set[str]:
    """Return the UIDs of pods that were told why they wait."""
    return {p["metadata"]["uid"] for p in namespace.pods() if _sentence(p)}


def _sentences(namespace: Any) -> list[str]:
    return [said for p in namespace.pods() if (said := _sentence(p))]


def _sentence(found: dict[str, Any]) -> str:
    """Return why a pod waits; "" if it does not, or was not told."""
    conditions = found["status"].get("conditions", [])
    said = (c.get("message", "") for c in conditions if c["type"] == "PodScheduled")
    return "" if "nodeName" in found["spec"] else next(said, "")
