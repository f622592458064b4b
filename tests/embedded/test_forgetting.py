"""Forgotten persons of Unix accounts: what the hub ends, and when the name is free again."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from hub_platform import HubPlatform
from runai.embedded.accounts.forgetting import AccountForgetting, ForgottenAccounts, files_naming
from runai.embedded.accounts.removal import LATE_JOBS_S, RETRY_INTERVAL_S
from runai.embedded.configuration import REMOVALS
from runai.embedded.directory import DataDirectory
from runai.hub_service.client import AsyncClient, Client
from runai.hub_service.processes.accounts.known_accounts import KnownAccount, KnownAccounts
from runai.hub_service.wire.errors import RunaiError, Unavailable
from runai.hub_service.wire.schemas import SubmitRequest


class Service:
    """Fake service with dora's workloads; those in `hangs` do not end."""

    def __init__(self) -> None:
        self.there = {"vision/job", "vision/done"}
        self.hangs: set[str] = set()
        self.away = False
        self.left: list[str] = []

    async def workloads(self, user: str) -> list[Any]:
        if self.away:
            raise Unavailable("The GPU service does not answer.")
        assert user == "dora"
        return [SimpleNamespace(id=name) for name in sorted(self.there)]

    async def delete(self, workload: str) -> None:
        self.there -= {workload} - self.hangs

    async def end_memberships(self, user: str) -> None:
        if self.away:
            raise Unavailable("The GPU service does not answer.")
        self.left.append(user)


class Rounds:
    """Forgetting on a clock that each sleep advances; the hub is a fake one."""

    def __init__(self, known: KnownAccounts) -> None:
        self.known = known
        self.service = Service()
        self.calls: list[str] = []
        self.now = 0.0
        self.late: Callable[[], None] = lambda: None
        hub = httpx.AsyncClient(
            base_url="http://hub/hub/api", transport=httpx.MockTransport(self._hub)
        )
        self.forgetting = AccountForgetting(
            ForgottenAccounts(known),
            hub,
            cast("AsyncClient", self.service),
            logging.getLogger("hub"),
            sleep=self._sleep,
            clock=lambda: self.now,
        )
        self.forgetting.files_naming = lambda name: [f"a member of vision in {name}.yaml"]

    async def until(self, condition: Callable[[], object], eventually_async: Any) -> None:
        running = asyncio.create_task(self.forgetting.run())
        try:
            await eventually_async(condition)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def _sleep(self, _seconds: float) -> None:
        self.now += RETRY_INTERVAL_S
        self.late()
        await asyncio.sleep(0)

    def _hub(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(f"{request.method} {request.url.path.removeprefix('/hub/api/')}")
        if request.url.path.endswith("/tokens"):
            return httpx.Response(200, json={"api_tokens": [{"id": "a1"}]})
        if request.method == "GET":
            return httpx.Response(200, json={"name": "dora", "servers": {"": {}}})
        return httpx.Response(204)


@pytest.fixture
def known(tmp_path: Path) -> KnownAccounts:
    known = KnownAccounts(tmp_path)
    known.register(KnownAccount("dora", 2001, 2001, "/home/dora"))
    return known


async def test_all_that_the_person_has_ends_and_the_name_is_free_a_minute_later(
    known: KnownAccounts, eventually_async: Any, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    rounds = Rounds(known)
    free: list[float] = []

    def late() -> None:
        if known.get("dora") is None:
            free.append(rounds.now)

    rounds.late = late
    known.request_forget("dora")
    await rounds.until(lambda: not known.being_forgotten(), eventually_async)

    assert rounds.service.there == set()
    assert rounds.service.left == ["dora"]
    assert rounds.calls == [
        "GET users/dora/tokens",
        "DELETE users/dora/tokens/a1",
        "GET users/dora",
        "DELETE users/dora/server",
        "DELETE users/dora",
    ]
    assert known.get("dora") is None
    assert all(time >= LATE_JOBS_S for time in free)
    told = [record.message for record in caplog.records if record.name == "hub"]
    assert "User dora was forgotten: tokens, servers, jobs, hub user and memberships" in told[0]
    assert told[1] == (
        "dora is still a member of vision in dora.yaml: a new person of that name, too."
    )


async def test_job_that_comes_in_with_a_token_that_is_still_known_is_deleted(
    known: KnownAccounts, eventually_async: Any
):
    rounds = Rounds(known)

    def late() -> None:
        if rounds.now == LATE_JOBS_S / 2:
            rounds.service.there.add("vision/late")

    rounds.late = late
    known.request_forget("dora")
    await rounds.until(lambda: not known.being_forgotten(), eventually_async)

    assert rounds.service.there == set()


@pytest.mark.parametrize("what", ["service away", "job that does not end"])
async def test_name_is_not_free_while_something_does_not_end(
    known: KnownAccounts, eventually_async: Any, caplog: pytest.LogCaptureFixture, what: str
):
    rounds = Rounds(known)
    rounds.service.away = what == "service away"
    rounds.service.hangs = {"vision/job"}
    known.request_forget("dora")
    await rounds.until(lambda: rounds.now > 3 * LATE_JOBS_S, eventually_async)
    free = known.get("dora") is None
    rounds.service.away, rounds.service.hangs = False, set()
    await rounds.until(lambda: not known.being_forgotten(), eventually_async)

    assert not free
    assert known.get("dora") is None
    why = "The GPU service does not answer." if what == "service away" else "vision/job still runs"
    warning = f"User dora cannot be forgotten yet: {why} (tried again every 5 s)"
    assert [r.message for r in caplog.records if r.message == warning] == [warning]


def test_files_that_name_a_person_at_each_start_are_named(tmp_path: Path):
    projects = tmp_path / "projects.yaml"
    projects.write_text("projects:\n  vision:\n    members: [dora, ana]\n    admins: [dora]\n")
    hub: Any = SimpleNamespace(
        load_groups={"team": {"users": ["dora"]}, "old": ["dora"], "other": ["ana"]},
        load_roles=[{"name": "runai-admin", "users": ["dora"]}, {"name": "user"}],
        authenticator=SimpleNamespace(admin_users={"dora"}, allowed_users=set()),
    )

    assert list(files_naming("dora", hub, projects)) == [
        f"a member of vision in {projects}",
        f"an admin of vision in {projects}",
        "in the group team of c.JupyterHub.load_groups",
        "in the group old of c.JupyterHub.load_groups",
        "in the role runai-admin of c.JupyterHub.load_roles",
        "in admin_users of the authenticator",
    ]
    assert list(files_naming("pat", hub, None)) == []


@pytest.mark.hub
async def test_person_of_a_real_hub_is_gone_with_jobs_and_memberships(
    platform: HubPlatform, known: KnownAccounts, eventually_async: Any
):
    directory = DataDirectory(platform.data_dir)
    url = f"{platform.http.base_url}/services/runai/"
    platform.http.post("/hub/api/users/dan")
    token, others = platform.token("dan"), platform.token("ana")
    secret = directory.cookie_secret.read_bytes()
    removals = hmac.digest(secret, REMOVALS.encode(), "sha256").hex()
    hub = httpx.AsyncClient(
        base_url=f"{platform.http.base_url}/hub/api/",
        headers={"Authorization": f"token {removals}"},
        timeout=60,
    )
    service, now = AsyncClient(url, directory.hub_token()), 0.0

    async def sleep(_seconds: float) -> None:
        nonlocal now
        now += RETRY_INTERVAL_S
        await asyncio.sleep(0.2)

    forgetting = AccountForgetting(
        ForgottenAccounts(known),
        hub,
        service,
        logging.getLogger("hub"),
        sleep=sleep,
        clock=lambda: now,
    )
    job = SubmitRequest(project="vision", gpus=0, command=["sleep", "3600"])
    with Client(url, token) as dans, Client(url, others) as anas:
        before = [w.user for w in (*dans.submit(job).workloads, *anas.submit(job).workloads)]
        known.request_forget("dan")
        running = asyncio.create_task(forgetting.run())
        try:
            await eventually_async(lambda: not known.being_forgotten())
        finally:
            running.cancel()
            await hub.aclose()
            await service.close()
        after = [w.user for w in anas.workloads() if w.state == "running" or w.user == "dan"]
        members = anas.project("vision").members
        with pytest.raises(RunaiError):  # the service may know the token: it is no member's
            dans.submit(job)
        for workload in anas.workloads(user="ana"):
            anas.delete(workload.id)
    in_hub = platform.http.get("/hub/api/users/dan").status_code
    platform.kill()
    platform.start()  # the projects file counts again
    with Client(url, others) as anas:
        members_of_the_file = anas.project("vision").members

    assert (before, set(after)) == (["dan", "ana"], {"ana"})
    assert "dan" not in members
    assert "dan" in members_of_the_file
    assert in_hub == 404
