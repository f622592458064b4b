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
from runai.embedded.accounts.account_forgetting import (
    AccountForgetting,
    ForgottenAccounts,
    files_naming,
)
from runai.embedded.accounts.account_removal import LATE_JOBS_S, RETRY_INTERVAL_S
from runai.embedded.configuration import REMOVALS
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.client import AsyncClient, Client
from runai.hub_service.processes.accounts.known_accounts import KnownAccount, KnownAccounts
from runai.hub_service.wire.errors import RunaiError, Unavailable
from runai.hub_service.wire.workload_request import SubmitRequest


class FakeService:
    """Fake service with dora's workloads; those in `stuck_workloads` do not end."""

    def __init__(self) -> None:
        self.workload_ids = {"vision/job", "vision/done"}
        self.stuck_workloads: set[str] = set()
        self.unavailable = False
        self.ended_memberships: list[str] = []

    async def workloads(self, user: str) -> list[Any]:
        if self.unavailable:
            raise Unavailable("The GPU service does not answer.")
        assert user == "dora"
        return [SimpleNamespace(id=name) for name in sorted(self.workload_ids)]

    async def delete(self, workload: str) -> None:
        self.workload_ids -= {workload} - self.stuck_workloads

    async def end_memberships(self, user: str) -> None:
        if self.unavailable:
            raise Unavailable("The GPU service does not answer.")
        self.ended_memberships.append(user)


class ForgettingHarness:
    """Forgetting on a clock that each sleep advances; the hub is a fake one."""

    def __init__(self, known_accounts: KnownAccounts) -> None:
        self.known_accounts = known_accounts
        self.service = FakeService()
        self.calls: list[str] = []
        self.now = 0.0
        self.on_sleep: Callable[[], None] = lambda: None
        hub = httpx.AsyncClient(
            base_url="http://hub/hub/api", transport=httpx.MockTransport(self._hub)
        )
        self.forgetting = AccountForgetting(
            ForgottenAccounts(known_accounts),
            hub,
            cast("AsyncClient", self.service),
            logging.getLogger("hub"),
            sleep=self._sleep,
            clock=lambda: self.now,
        )
        self.forgetting.files_naming = lambda name: [f"a member of vision in {name}.yaml"]

    async def run_until(self, condition: Callable[[], object], eventually_async: Any) -> None:
        forgetting_task = asyncio.create_task(self.forgetting.run())
        try:
            await eventually_async(condition)
        finally:
            forgetting_task.cancel()
            with suppress(asyncio.CancelledError):
                await forgetting_task

    async def _sleep(self, _seconds: float) -> None:
        self.now += RETRY_INTERVAL_S
        self.on_sleep()
        await asyncio.sleep(0)

    def _hub(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(f"{request.method} {request.url.path.removeprefix('/hub/api/')}")
        if request.url.path.endswith("/tokens"):
            return httpx.Response(200, json={"api_tokens": [{"id": "a1"}]})
        if request.method == "GET":
            return httpx.Response(200, json={"name": "dora", "servers": {"": {}}})
        return httpx.Response(204)


@pytest.fixture
def known_accounts(tmp_path: Path) -> KnownAccounts:
    known_accounts = KnownAccounts(tmp_path)
    known_accounts.register(KnownAccount("dora", 2001, 2001, "/home/dora"))
    return known_accounts


async def test_forgotten_person_loses_everything_and_user_name_is_free_after_a_minute(
    known_accounts: KnownAccounts, eventually_async: Any, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    harness = ForgettingHarness(known_accounts)
    free_times_s: list[float] = []

    def record_free_name() -> None:
        if known_accounts.get("dora") is None:
            free_times_s.append(harness.now)

    harness.on_sleep = record_free_name
    known_accounts.request_forget("dora")
    await harness.run_until(lambda: not known_accounts.being_forgotten(), eventually_async)

    assert harness.service.workload_ids == set()
    assert harness.service.ended_memberships == ["dora"]
    assert harness.calls == [
        "GET users/dora/tokens",
        "DELETE users/dora/tokens/a1",
        "GET users/dora",
        "DELETE users/dora/server",
        "DELETE users/dora",
    ]
    assert known_accounts.get("dora") is None
    assert all(time_s >= LATE_JOBS_S for time_s in free_times_s)
    messages = [record.message for record in caplog.records if record.name == "hub"]
    assert "User dora was forgotten: tokens, servers, jobs, hub user and memberships" in messages[0]
    assert messages[1] == (
        "dora is still a member of vision in dora.yaml: a new person of that name, too."
    )


async def test_job_submitted_late_by_a_forgotten_person_is_deleted(
    known_accounts: KnownAccounts, eventually_async: Any
):
    harness = ForgettingHarness(known_accounts)

    def add_late_job() -> None:
        if harness.now == LATE_JOBS_S / 2:
            harness.service.workload_ids.add("vision/late")

    harness.on_sleep = add_late_job
    known_accounts.request_forget("dora")
    await harness.run_until(lambda: not known_accounts.being_forgotten(), eventually_async)

    assert harness.service.workload_ids == set()


@pytest.mark.parametrize("blocker", ["service down", "job that does not end"])
async def test_forgotten_user_name_stays_reserved_while_service_is_down_or_job_does_not_end(
    known_accounts: KnownAccounts,
    eventually_async: Any,
    caplog: pytest.LogCaptureFixture,
    blocker: str,
):
    harness = ForgettingHarness(known_accounts)
    harness.service.unavailable = blocker == "service down"
    harness.service.stuck_workloads = {"vision/job"}
    known_accounts.request_forget("dora")
    await harness.run_until(lambda: harness.now > 3 * LATE_JOBS_S, eventually_async)
    is_free = known_accounts.get("dora") is None
    harness.service.unavailable, harness.service.stuck_workloads = False, set()
    await harness.run_until(lambda: not known_accounts.being_forgotten(), eventually_async)

    assert not is_free
    assert known_accounts.get("dora") is None
    reason = (
        "The GPU service does not answer." if blocker == "service down" else "vision/job still runs"
    )
    warning = f"User dora cannot be forgotten yet: {reason} (tried again every 5 s)"
    assert [r.message for r in caplog.records if r.message == warning] == [warning]


def test_configuration_entries_that_name_a_forgotten_person_are_listed(tmp_path: Path):
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
async def test_real_hub_deletes_user_jobs_and_memberships_of_forgotten_person(
    platform: HubPlatform, known_accounts: KnownAccounts, eventually_async: Any
):
    directory = DataDirectory(platform.data_dir)
    url = f"{platform.http.base_url}/services/runai/"
    platform.http.post("/hub/api/users/dan")
    dan_token, ana_token = platform.token("dan"), platform.token("ana")
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
        ForgottenAccounts(known_accounts),
        hub,
        service,
        logging.getLogger("hub"),
        sleep=sleep,
        clock=lambda: now,
    )
    request = SubmitRequest(project="vision", gpus=0, command=["sleep", "3600"])
    with Client(url, dan_token) as dan_client, Client(url, ana_token) as ana_client:
        owners_before = [
            w.user
            for w in (*dan_client.submit(request).workloads, *ana_client.submit(request).workloads)
        ]
        known_accounts.request_forget("dan")
        forgetting_task = asyncio.create_task(forgetting.run())
        try:
            await eventually_async(lambda: not known_accounts.being_forgotten())
        finally:
            forgetting_task.cancel()
            await hub.aclose()
            await service.close()
        owners_after = {
            w.user for w in ana_client.workloads() if w.state == "running" or w.user == "dan"
        }
        members = ana_client.project("vision").members
        with pytest.raises(RunaiError):  # the service may know the token: it is no member's
            dan_client.submit(request)
        for workload in ana_client.workloads(user="ana"):
            ana_client.delete(workload.id)
    in_hub = platform.http.get("/hub/api/users/dan").status_code
    platform.kill()
    platform.start()  # the projects file counts again
    with Client(url, ana_token) as ana_client:
        members_of_the_file = ana_client.project("vision").members

    assert owners_before == ["dan", "ana"]
    assert owners_after == {"ana"}
    assert "dan" not in members
    assert "dan" in members_of_the_file
    assert in_hub == 404
