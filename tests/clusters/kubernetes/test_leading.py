"""Of several schedulers one acts; when it dies or is cut off, another goes on."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from control_plane.faults import FaultyServer
from control_plane.objects import pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

LEASE = "/apis/coordination.k8s.io/v1/namespaces/runai/leases/runai-scheduler"


@pytest.fixture
def ready(lab):
    lab.node("gpu-0", gpus=2)
    lab.project("vision", quota=2)
    yield lab
    lab.plane.request("DELETE", LEASE)


def holder(lab) -> str:
    leases = lab.plane.request("GET", LEASE.rpartition("/")[0])["items"]
    return next((str(lease["spec"].get("holderIdentity")) for lease in leases), "")


def test_the_second_scheduler_waits_until_the_first_is_dead(ready, rights, eventually):
    work = ready.namespace
    with ExitStack() as life:
        first = life.enter_context(Scheduler(rights, candidate="first"))
        eventually(lambda: first.cycles, what="the first leads")
        with Scheduler(rights, candidate="second") as second:
            work.create(pod("one", project="vision"))
            eventually(lambda: work.node_of("one"), what="the first binds")
            assert (holder(ready), second.cycles) == ("first", [])
            life.close()
            work.create(pod("two", project="vision"))
            eventually(lambda: work.node_of("two"), what="the second binds")

    assert holder(ready) == "second"


def test_a_leader_that_is_cut_off_does_nothing_any_more(ready, rights, eventually):
    with (
        FaultyServer(rights) as server,
        Scheduler(server.kubeconfig, candidate="cut-off") as cut_off,
    ):
        eventually(lambda: cut_off.cycles, what="it leads")
        server.is_down = True
        server.cut()
        with Scheduler(rights, candidate="other"):
            eventually(lambda: holder(ready) == "other", what="the other one leads")
            ready.namespace.create(pod("one", project="vision"))
            eventually(lambda: ready.namespace.node_of("one"), what="the other one binds")
            server.is_down = False
            server.requests.clear()
            eventually(
                lambda: any("leases" in path for _method, path in server.requests),
                what="the first asks again",
            )

    assert not any(path.endswith("/binding") for _method, path in server.requests)
