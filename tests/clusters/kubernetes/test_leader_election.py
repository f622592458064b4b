"""Leader election between schedulers: if the leader dies or is cut off, another one takes over."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from contextlib import ExitStack, suppress

import pytest

from control_plane.faults import FaultyServer
from control_plane.objects import pod
from control_plane.scheduling import Scheduler
from control_plane.sockets import all_closed
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.client.leader_election import LeaderElection

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]

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


def test_standby_scheduler_binds_nothing_until_the_leader_is_dead(ready, rights, eventually):
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


def test_leader_with_a_blocked_event_loop_renews_its_lease(ready, rights, eventually):
    """A cycle on a busy machine may take longer than the Lease lasts."""
    begun, goes_on, led = threading.Event(), threading.Event(), list[str]()

    async def work() -> None:
        begun.set()
        goes_on.wait(60)  # no other task runs in this loop
        led.append(holder(ready))
        raise _EnoughError

    async def lead() -> None:
        async with await Api.connect(str(rights)) as api:
            candidate = LeaderElection(api, namespace="runai", identity="busy", lasts_s=6)
            with suppress(_EnoughError):
                await candidate.lead(work)
            await candidate.resign()
        await all_closed()

    thread = threading.Thread(target=lambda: asyncio.run(lead()))
    thread.start()
    assert begun.wait(90)
    first = renewed(ready)
    try:
        eventually(lambda: renewed(ready) - first > dt.timedelta(seconds=12), what="it renews")
    finally:
        goes_on.set()
        thread.join(90)

    assert led == ["busy"]
    assert holder(ready) == ""


class _EnoughError(Exception):
    """Stops the candidate once it has led."""


def renewed(lab) -> dt.datetime:
    return dt.datetime.fromisoformat(lab.plane.request("GET", LEASE)["spec"]["renewTime"])


def test_leader_cut_off_from_the_api_server_binds_nothing_afterwards(ready, rights, eventually):
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
