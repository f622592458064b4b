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


class NameAuthenticator(Authenticator):
    """Users whose token is their name."""

    async def actor(self, request: Request) -> Actor:
        return Actor(request.headers["Authorization"].removeprefix("token "))

    async def person(self, name: str) -> Actor:
        return Actor(name)


def request_with(token: str, method: str = "GET", path: str = "/") -> Request:
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
async def test_requests_that_change_state_or_read_secrets_require_a_fresh_uid_check(
    tmp_path, method, path, is_answered
):
    with accounts() as account_db:
        directory = account_db.directory(tmp_path / "data", clock=lambda: 1000.0)
        tokens = SharedTokenAuthenticator(HUB_TOKEN, {}, NameAuthenticator(), directory)
        await directory.account("ana")
        await tokens.actor(request_with("ana"))
        account_db.answer("ana", account_db.entry("ana", uid=60_001))

        if is_answered:
            assert (await tokens.actor(request_with("ana", method, path))).name == "ana"
        else:
            with pytest.raises(Forbidden) as refusal:
                await tokens.actor(request_with("ana", method, path))
            assert refusal.value.code == OTHER_PERSON


@pytest.mark.parametrize(
    ("uid", "refused"),
    [
        pytest.param(UIDS["ana"], False, id="same uid"),
        pytest.param(60_001, True, id="other uid"),
        pytest.param(None, False, id="account removed"),
        pytest.param("silence", False, id="no reply"),
    ],
)
@pytest.mark.parametrize("is_first", [False, True], ids=["read before", "not read before"])
async def test_user_with_a_changed_uid_is_refused_within_a_minute(
    tmp_path: Path, is_first: bool, uid: int | str | None, refused: bool
):
    now = [1000.0]
    with accounts() as account_db:
        directory = account_db.directory(tmp_path / "data", clock=lambda: now[0], within_s=2)
        tokens = SharedTokenAuthenticator(HUB_TOKEN, {}, NameAuthenticator(), directory)
        await directory.account("ana")
        if not is_first:
            await tokens.actor(request_with("ana"))
        entry = {"local": False} if uid is None else account_db.entry("ana", uid=uid)
        account_db.answer("ana", "silence" if uid == "silence" else entry)
        now[0] += READ_FOR_S

        if refused:
            with pytest.raises(Forbidden, match=f"uid {uid} now, it was {UIDS['ana']}") as refusal:
                await tokens.actor(request_with("ana"))
            assert refusal.value.code == OTHER_PERSON
        else:
            assert (await tokens.actor(request_with("ana"))).name == "ana"


@pytest.mark.parametrize("name", ["sue", "root@example.org"])
async def test_user_without_a_unix_account_is_admitted(tmp_path: Path, name: str):
    with accounts() as account_db:
        tokens = SharedTokenAuthenticator(
            HUB_TOKEN, {}, NameAuthenticator(), account_db.directory(tmp_path / "data")
        )

        assert (await tokens.actor(request_with(name))).name == name


@pytest.mark.parametrize(
    ("token", "kind"),
    [pytest.param(HUB_TOKEN, "hub", id="hub"), pytest.param(NODE_TOKEN, "agent", id="agent")],
)
async def test_hub_and_agent_tokens_are_admitted_without_a_uid_check(
    tmp_path: Path, token: str, kind: str
):
    with accounts() as account_db:
        directory = account_db.directory(tmp_path / "data")
        await directory.account("ana")
        account_db.answer("ana", account_db.entry("ana", uid=60_001))
        tokens = SharedTokenAuthenticator(
            HUB_TOKEN, {"ana": NODE_TOKEN}, NameAuthenticator(), directory
        )

        assert (await tokens.actor(request_with(token))).kind == kind


@pytest.mark.parametrize(
    ("current_uid", "accepted_uids", "submitted_uid", "note"),
    [
        pytest.param(60_000, (), 60_000, "", id="same uid"),
        pytest.param(60_001, (), 60_000, "ana has uid 60001 now, it was 60000", id="new uid"),
        pytest.param(60_001, (60_001,), 60_000, "uid 60000; ana has 60001 now", id="accepted uid"),
        pytest.param(60_001, (60_001,), 60_001, "", id="submitted with the new uid"),
        pytest.param(None, (), 60_000, "", id="account removed"),
        pytest.param(60_001, (), None, "", id="submitted without an account"),
    ],
)
async def test_workload_note_names_the_old_uid_after_its_owners_uid_changed(
    tmp_path: Path,
    current_uid: int | None,
    accepted_uids: tuple[int, ...],
    submitted_uid: int | None,
    note: str,
):
    with accounts() as account_db:
        directory = account_db.directory(tmp_path)
        account_db.answer("ana", account_db.entry("ana", uid=60_000))
        await directory.account("ana")
        for uid in accepted_uids:
            directory.known_accounts.take_uid("ana", uid)
        account_db.answer(
            "ana",
            {"local": False} if current_uid is None else account_db.entry("ana", uid=current_uid),
        )
        record: Any = SimpleNamespace(spec=SimpleNamespace(user="ana"), account_uid=submitted_uid)
        platform: Any = SimpleNamespace(accounts=directory)

        account_note = await Platform.account_note(platform, record)

    assert account_note.startswith(note)
    assert bool(account_note) is bool(note)
