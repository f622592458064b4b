"""Rounds of a removal: late jobs are suspended, failures are retried and logged once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from runai.embedded.accounts.account_removal import LATE_JOBS_S, RETRY_INTERVAL_S, AccountRemoval
from runai.embedded.accounts.accounts import Accounts
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.client import AsyncClient
from runai.hub_service.wire.errors import Unavailable

PASSWORD = "correct horse"


class FakeService:
    """Fake service with ana's jobs; `is_down` makes every call fail."""

    def __init__(self) -> None:
        self.states = {"vision/job": "running", "vision/done": "succeeded"}
        self.is_down = False

    async def workloads(self, user: str) -> list[Any]:
        if self.is_down:
            raise Unavailable("The GPU service does not answer.")
        assert user == "ana"
        return [
            SimpleNamespace(id=name, kind="job", state=state) for name, state in self.states.items()
        ]

    async def suspend(self, workload: str) -> None:
        self.states[workload] = "suspended"


class Rounds:
    """A removal with rounds started by the test."""

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.service = FakeService()
        self.user_exists = True
        self.hub_refuses = False
        self.now = 0.0
        self._next = asyncio.Condition()
        hub = httpx.AsyncClient(
            base_url="http://hub/hub/api", transport=httpx.MockTransport(self._hub)
        )
        self.removal = AccountRemoval(
            accounts,
            hub,
            cast("AsyncClient", self.service),
            logging.getLogger("hub"),
            sleep=self._sleep,
            clock=lambda: self.now,
        )

    async def round(self) -> None:
        async with self._next:
            self.now += RETRY_INTERVAL_S
            self._next.notify_all()

    async def _sleep(self, _seconds: float) -> None:
        async with self._next:
            await self._next.wait()

    def _hub(self, request: httpx.Request) -> httpx.Response:
        if not self.user_exists:
            return httpx.Response(404)
        if request.url.path.endswith("/tokens"):
            return httpx.Response(200, json={"api_tokens": []})
        if request.method == "GET":
            return httpx.Response(200, json={"name": "ana", "servers": {}})
        if self.hub_refuses:
            return httpx.Response(500)
        self.user_exists = False
        return httpx.Response(204)


@pytest.fixture
async def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rounds]:
    monkeypatch.setattr("runai.embedded.accounts.accounts._COST", 16)  # no logins in these tests
    directory = DataDirectory(tmp_path)
    directory.prepare(system_users=False)
    accounts = Accounts(directory)
    accounts.add("ana", PASSWORD)
    rounds = Rounds(accounts)
    removal_task = asyncio.create_task(rounds.removal.run())
    yield rounds
    removal_task.cancel()
    with suppress(asyncio.CancelledError):
        await removal_task


async def run_rounds_until(
    rounds: Rounds, until: Callable[[], object], eventually_async: Callable[..., Any]
) -> None:
    async def reached() -> object:
        await rounds.round()
        return until()

    await eventually_async(reached)


async def test_job_submitted_late_by_a_removed_account_is_suspended(
    rounds: Rounds, eventually_async: Callable[..., Any]
):
    rounds.accounts.remove("ana")
    await run_rounds_until(rounds, lambda: not rounds.accounts.pending_removals(), eventually_async)
    rounds.service.states["vision/late"] = "queued"
    await run_rounds_until(rounds, lambda: rounds.now > LATE_JOBS_S, eventually_async)

    assert rounds.service.states == {
        "vision/job": "suspended",
        "vision/done": "succeeded",
        "vision/late": "suspended",
    }


async def test_job_resumed_after_its_account_is_added_again_is_not_suspended(
    rounds: Rounds, eventually_async: Callable[..., Any]
):
    rounds.accounts.remove("ana")
    await run_rounds_until(rounds, lambda: not rounds.accounts.pending_removals(), eventually_async)
    rounds.accounts.add("ana", PASSWORD, same_person=True)
    rounds.service.states["vision/job"] = "running"
    await run_rounds_until(rounds, lambda: rounds.now > 2 * LATE_JOBS_S, eventually_async)

    assert rounds.service.states["vision/job"] == "running"


async def test_hub_user_of_a_removed_account_is_deleted_while_the_service_is_down(
    rounds: Rounds, eventually_async: Callable[..., Any], caplog: pytest.LogCaptureFixture
):
    rounds.service.is_down = True
    rounds.accounts.remove("ana")
    await run_rounds_until(rounds, lambda: rounds.now > 10 * RETRY_INTERVAL_S, eventually_async)
    deleted, pending = not rounds.user_exists, set(rounds.accounts.pending_removals())
    rounds.service.is_down = False
    await run_rounds_until(rounds, lambda: not rounds.accounts.pending_removals(), eventually_async)

    assert deleted
    assert pending == {"ana"}
    assert rounds.service.states["vision/job"] == "suspended"
    [warning] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning == (
        "What removed user ana has open cannot be ended yet: The GPU service does not answer."
        " (tried again every 5 s)"
    )


async def test_jobs_of_a_removed_account_are_suspended_while_the_hub_refuses_requests(
    rounds: Rounds, eventually_async: Callable[..., Any], caplog: pytest.LogCaptureFixture
):
    rounds.hub_refuses = True
    rounds.accounts.remove("ana")
    await run_rounds_until(rounds, lambda: rounds.now > 10 * RETRY_INTERVAL_S, eventually_async)
    pending = set(rounds.accounts.pending_removals())
    rounds.hub_refuses = False
    await run_rounds_until(rounds, lambda: not rounds.accounts.pending_removals(), eventually_async)

    assert pending == {"ana"}
    assert rounds.service.states["vision/job"] == "suspended"
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_account_removal_rounds_continue_after_a_damaged_accounts_file(
    rounds: Rounds, eventually_async: Callable[..., Any], tmp_path: Path
):
    whole = DataDirectory(tmp_path).accounts.read_text()
    DataDirectory(tmp_path).accounts.write_text("{")
    await run_rounds_until(rounds, lambda: rounds.now > 3 * RETRY_INTERVAL_S, eventually_async)
    DataDirectory(tmp_path).accounts.write_text(whole)
    rounds.accounts.remove("ana")

    await run_rounds_until(rounds, lambda: not rounds.user_exists, eventually_async)
