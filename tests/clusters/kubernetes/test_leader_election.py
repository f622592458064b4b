"""Leader election between schedulers: if the leader dies or is cut off, another one takes over."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from contextlib import ExitStack, suppress

import pytest

from control_plane.faults import FaultyServer
from control_plane.lab import LEASE
from control_plane.objects import pod
from control_plane.scheduling import LEASE_LASTS_S, Scheduler
from control_plane.sockets import all_closed
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.client.leader_election import LeaderElection

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]


@pytest.fixture
def two_gpus(lab):
    lab.node("gpu-0", gpus=2)
    lab.project("vision", quota=2)
    return lab


def holder(lab) -> str:
    leases = lab.plane.request("GET", LEASE.rpartition("/")[0])["items"]
    return next((str(lease["spec"].get("holderIdentity")) for lease in leases), "")


def test_standby_scheduler_binds_nothing_until_the_leader_is_dead(two_gpus, kubeconfig, eventually):
    work = two_gpus.namespace
    with ExitStack() as first_lifetime:
        first = first_lifetime.enter_context(Scheduler(kubeconfig, candidate="first"))
        eventually(lambda: first.cycles, what="the first leads")
        with Scheduler(kubeconfig, candidate="second") as second:
            work.create(pod("one", project="vision"))
            eventually(lambda: work.node_of("one"), what="the first binds")
            assert (holder(two_gpus), second.cycles) == ("first", [])
            first_lifetime.close()
            work.create(pod("two", project="vision"))
            eventually(lambda: work.node_of("two"), what="the second binds")

    assert holder(two_gpus) == "second"


def test_leader_with_a_blocked_event_loop_renews_its_lease(two_gpus, kubeconfig, eventually):
    """A cycle on a busy machine may take longer than the Lease lasts."""
    work_began, may_finish, holders = threading.Event(), threading.Event(), list[str]()

    async def work() -> None:
        work_began.set()
        may_finish.wait(60)  # no other task runs in this loop
        holders.append(holder(two_gpus))
        raise _EnoughError

    async def lead() -> None:
        async with await Api.connect(str(kubeconfig)) as api:
            candidate = LeaderElection(
                api, namespace="runai", identity="busy", lasts_s=LEASE_LASTS_S
            )
            with suppress(_EnoughError):
                await candidate.lead(work)
            await candidate.resign()
        await all_closed()

    thread = threading.Thread(target=lambda: asyncio.run(lead()))
    thread.start()
    assert work_began.wait(90)
    first, two_terms = renewed(two_gpus), dt.timedelta(seconds=2 * LEASE_LASTS_S)
    try:
        eventually(lambda: renewed(two_gpus) - first > two_terms, what="the Lease is renewed")
    finally:
        may_finish.set()
        thread.join(90)

    assert holders == ["busy"]
    assert holder(two_gpus) == ""


class _EnoughError(Exception):
    """Stops the candidate once it has led."""


def renewed(lab) -> dt.datetime:
    return dt.datetime.fromisoformat(lab.plane.request("GET", LEASE)["spec"]["renewTime"])


def test_leader_cut_off_from_the_api_server_binds_nothing_afterwards(
    two_gpus, kubeconfig, eventually
):
    with (
        FaultyServer(kubeconfig) as server,
        Scheduler(server.kubeconfig, candidate="cut-off") as cut_off,
    ):
        eventually(lambda: cut_off.cycles, what="the first leads")
        server.is_down = True
        server.cut()
        with Scheduler(kubeconfig, candidate="other"):
            eventually(lambda: holder(two_gpus) == "other", what="the second leads")
            two_gpus.namespace.create(pod("one", project="vision"))
            eventually(lambda: two_gpus.namespace.node_of("one"), what="the second binds")
            server.is_down = False
            server.requests.clear()
            eventually(
                lambda: any("leases" in path for _method, path in server.requests),
                what="the first requests the Lease again",
            )

    assert not any(path.endswith("/binding") for _method, path in server.requests)
