"""The service answers users with Unix accounts while their names have the known uids."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from runai.hub_service.api.auth.authentication import Authenticator, SharedTokenAuthenticator
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.processes.accounts.account_directory import OTHER_PERSON, READ_FOR_S
from runai.hub_service.wire.errors import Forbidden
from unix_accounts import UIDS, accounts

HUB_TOKEN, NODE_TOKEN = "of the hub", "of the node"


class Named(Authenticator):
    """Users whose token is their name."""

    async def actor(self, request: Request) -> Actor:
        return Actor(request.headers["Authorization"].removeprefix("token "))

    async def person(self, name: str) -> Actor:
        return Actor(name)


def sent_with(token: str, method: str = "GET", path: str = "/") -> Request:
    headers = [(b"authorization", f"token {token}".encode()), (b"host", b"hub")]
    return Request({"type": "http", "method": method, "path": path, "headers": headers})


@pytest.mark.parametrize(
    ("method", "path", "is_answered"),
    [
        ("GET", "/api/v1/workloads", True),
        ("GET", "/api/v1/workloads/vision/exp/environment", False),
        ("POST", "/api/v1/workloads/vision/exp/suspend", False),
        ("DELETE", "/api/v1/workloads/vision/exp", False),
    ],
    ids=["list", "environment", "change", "deletion"],
)
async def test_changes_and_secrets_need_a_comparison_of_now(tmp_path, method, path, is_answered):
    with accounts() as there:
        directory = there.directory(tmp_path / "data", clock=lambda: 1000.0)
        tokens = SharedTokenAuthenticator(HUB_TOKEN, {}, Named(), directory)
        await directory.account("ana")
        await tokens.actor(sent_with("ana"))
        there.answer("ana", there.entry("ana", uid=60_001))

        if is_answered:
            assert (await tokens.actor(sent_with("ana", method, path))).name == "ana"
        else:
            with pytest.raises(Forbidden) as refusal:
                await tokens.actor(sent_with("ana", method, path))
            assert refusal.value.code == OTHER_PERSON


@pytest.mark.parametrize(
    ("uid", "refused"),
    [
        pytest.param(UIDS["ana"], False, id="same uid"),
        pytest.param(60_001, True, id="other uid"),
        pytest.param(None, False, id="gone"),
        pytest.param("silence", False, id="away"),
    ],
)
@pytest.mark.parametrize("is_first", [False, True], ids=["read before", "not read before"])
async def test_a_user_with_another_uid_is_refused_within_a_minute(
    tmp_path: Path, is_first: bool, uid: int | str | None, refused: bool
):
    now = [1000.0]
    with accounts() as there:
        directory = there.directory(tmp_path / "data", clock=lambda: now[0], within_s=2)
        tokens = SharedTokenAuthenticator(HUB_TOKEN, {}, Named(), directory)
        await directory.account("ana")
        if not is_first:
            await tokens.actor(sent_with("ana"))
        told = {"local": False} if uid is None else there.entry("ana", uid=uid)
        there.answer("ana", "silence" if uid == "silence" else told)
        now[0] += READ_FOR_S

        if refused:
            with pytest.raises(Forbidden, match=f"uid {uid} now, it was {UIDS['ana']}") as other:
                await tokens.actor(sent_with("ana"))
            assert other.value.code == OTHER_PERSON
        else:
            assert (await tokens.actor(sent_with("ana"))).name == "ana"


@pytest.mark.parametrize("name", ["sue", "root@example.org"])
async def test_a_user_without_an_account_is_admitted(tmp_path: Path, name: str):
    with accounts() as there:
        tokens = SharedTokenAuthenticator(
            HUB_TOKEN, {}, Named(), there.directory(tmp_path / "data")
        )

        assert (await tokens.actor(sent_with(name))).name == name


@pytest.mark.parametrize(
    ("token", "kind"),
    [pytest.param(HUB_TOKEN, "hub", id="hub"), pytest.param(NODE_TOKEN, "agent", id="agent")],
)
async def test_the_platforms_own_processes_have_no_account(tmp_path: Path, token: str, kind: str):
    with accounts() as there:
        directory = there.directory(tmp_path / "data")
        await directory.account("ana")
        there.answer("ana", there.entry("ana", uid=60_001))
        tokens = SharedTokenAuthenticator(HUB_TOKEN, {"ana": NODE_TOKEN}, Named(), directory)

        assert (await tokens.actor(sent_with(token))).kind == kind


@pytest.mark.parametrize(
    ("now", "taken", "submitted", "note"),
    [
        pytest.param(60_000, (), 60_000, "", id="same uid"),
        pytest.param(60_001, (), 60_000, "ana has uid 60001 now, it was 60000", id="undecided"),
        pytest.param(60_001, (60_001,), 60_000, "uid 60000; ana has 60001 now", id="same person"),
        pytest.param(60_001, (60_001,), 60_001, "", id="submitted since"),
        pytest.param(None, (), 60_000, "", id="gone"),
        pytest.param(60_001, (), None, "", id="not as an account"),
    ],
)
async def test_uid_of_a_workload_is_named_if_it_is_not_its_users_any_more(
    tmp_path: Path, now: int | None, taken: tuple[int, ...], submitted: int | None, note: str
):
    with accounts() as there:
        directory = there.directory(tmp_path)
        there.answer("ana", there.entry("ana", uid=60_000))
        await directory.account("ana")
        for uid in taken:
            directory.known_accounts.take_uid("ana", uid)
        there.answer("ana", {"local": False} if now is None else there.entry("ana", uid=now))
        record: Any = SimpleNamespace(spec=SimpleNamespace(user="ana"), account_uid=submitted)
        platform: Any = SimpleNamespace(accounts=directory)

        told = await Platform.account_note(platform, record)

    assert told.startswith(note)
    assert bool(told) is bool(note)
