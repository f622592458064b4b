"""A flood of one user's requests is refused with a time to retry.

Requests of other users and of the platform are accepted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from starlette.datastructures import Headers

from labs import Clock
from runai.hub_service.api.middleware import request_limits
from runai.hub_service.api.middleware.request_limits import (
    AT_ONCE,
    BUSY_S,
    JITTER,
    MOST_KNOWN,
    UNKNOWN_RATE_FACTOR,
    WINDOW_S,
    Allowance,
    CallerLimits,
    RequestLimits,
    credential_of,
)
from runai.hub_service.client import AsyncClient, transport
from runai.hub_service.client.calls import Retries
from runai.hub_service.wire.errors import TooMany, Unavailable
from runai.hub_service.wire.schemas import SubmitRequest

RATE = 4
BURST = RATE * WINDOW_S
ANA, MIA, BO = b"ana", b"mia", b"bo"


@pytest.fixture
def clock(monkeypatch):
    """Measure the window of calls by a clock that stands still."""
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


def callers(**allowed: int) -> CallerLimits:
    """Return the limits, with every user's credential already identified."""
    here = CallerLimits(Allowance(**allowed))
    for who in (ANA, MIA, BO):
        here.store(who, f"user {who.decode()}", exempt=False)
    return here


def calls(of: CallerLimits, who: bytes, many: int) -> int:
    """Make the given number of calls one after the other; return how many were accepted."""
    let_in = 0
    for _ in range(many):
        try:
            name = of.enter(who, submits=False)
        except TooMany:
            continue
        of.leave(name, submits=False)
        let_in += 1
    return let_in


def test_a_burst_is_let_in_and_then_no_more_until_the_window_has_passed(clock):
    here = callers(calls_per_s=RATE)

    assert calls(here, ANA, 3 * BURST) == BURST
    clock.at += WINDOW_S - 1
    with pytest.raises(TooMany, match="more than 4 times a second") as refused:
        here.enter(ANA, submits=False)
    assert 1.0 <= refused.value.retry_after <= JITTER
    clock.at += 1.5
    assert calls(here, ANA, 3 * BURST) == BURST


def test_tokens_of_one_user_share_one_rate_and_leave_other_users_theirs(clock):
    here = callers(calls_per_s=RATE)
    for token in (b"laptop", b"notebook"):
        here.store(token, "user ana", exempt=False)

    assert calls(here, b"laptop", BURST) + calls(here, b"notebook", BURST) == BURST
    assert calls(here, MIA, BURST) == BURST


def test_the_platforms_own_processes_are_not_counted():
    here = callers(calls_per_s=RATE, open_at_once=1)
    here.store(b"token", "agent box", exempt=True)

    assert calls(here, b"token", 10 * BURST) == 10 * BURST
    assert calls(callers(), ANA, 1000) == 1000, "nobody is where nothing is set"


def test_open_calls_count_until_they_are_closed():
    here = callers(open_at_once=2)
    first = here.enter(ANA, submits=False)
    here.enter(ANA, submits=False)

    with pytest.raises(TooMany, match="2 of your calls and streams are open"):
        here.enter(ANA, submits=False)
    here.enter(MIA, submits=False)
    here.leave(first, submits=False)
    here.enter(ANA, submits=False)


def test_submissions_of_all_users_share_one_limit():
    here = callers(submissions_at_once=2)
    one = here.enter(ANA, submits=True)
    here.enter(MIA, submits=True)

    with pytest.raises(Unavailable, match="2 submissions wait") as refused:
        here.enter(BO, submits=True)
    assert refused.value.code == "busy"
    assert BUSY_S <= refused.value.retry_after <= BUSY_S * JITTER
    here.enter(BO, submits=False)
    here.leave(one, submits=True)
    here.enter(BO, submits=True)


def test_unknown_credentials_share_one_rate(clock):
    here = CallerLimits(Allowance(calls_per_s=RATE))
    made_up = [str(n).encode() for n in range(2 * UNKNOWN_RATE_FACTOR * BURST)]

    assert sum(calls(here, one, 1) for one in made_up) == UNKNOWN_RATE_FACTOR * BURST
    here.store(ANA, "user ana", exempt=False)
    assert calls(here, ANA, 2 * BURST) == BURST


def test_the_credentials_that_are_remembered_are_bounded():
    here = callers(open_at_once=1)
    for number in range(2 * MOST_KNOWN):
        here.store(str(number).encode(), f"user {number}", exempt=False)

    assert len(here._known) <= MOST_KNOWN


@pytest.mark.parametrize(
    ("who", "query", "streams", "begun"),
    [
        pytest.param("ana", b"", False, AT_ONCE, id="calls"),
        pytest.param("ana", b"", True, 2 * AT_ONCE, id="streams, once they have begun"),
        pytest.param("ana", b"changed_from=1", False, 2 * AT_ONCE, id="waits for a change"),
        pytest.param("hub", b"", False, 2 * AT_ONCE, id="the platform's own"),
    ],
)
async def test_few_calls_of_one_person_are_worked_on_at_once(who, query, streams, begun):
    here, seen, go = CallerLimits(), Counter[str](), asyncio.Event()

    async def app(scope, receive, send):
        seen[scope["path"]] += 1
        if streams:
            await send({"type": "http.response.start", "status": 200})
        await go.wait()

    async def receive():
        return {}

    async def send(message):
        pass

    limits = RequestLimits(app, prefix="/", free=(), refuse=lambda _error: app)

    async def call(name: str) -> None:
        shown = {"authorization": f"Bearer {name}"}
        here.store(credential_of(Headers(shown)), name, exempt=name == "hub")
        state = SimpleNamespace(platform=SimpleNamespace(callers=here))
        scope = {
            "type": "http",
            "method": "GET",
            "path": name,
            "query_string": query,
            "headers": Headers(shown).raw,
            "app": SimpleNamespace(state=state),
        }
        await limits(scope, receive, send)

    calls = [asyncio.create_task(call(name)) for name in [*[who] * 2 * AT_ONCE, "mia"]]
    await asyncio.sleep(0)  # every admitted call has started
    assert seen == {who: begun, "mia": 1}
    go.set()
    await asyncio.gather(*calls)

    assert seen[who] == 2 * AT_ONCE


@pytest.fixture
def allowed(simulated, monkeypatch, clock):
    """Allow each identified user the given number of calls a second."""
    found = simulated.platform.callers
    monkeypatch.setattr(found, "allowance", Allowance(calls_per_s=RATE))
    monkeypatch.setattr(request_limits, "REFUSAL_DELAY_S", 0.01)
    for who, kind in (("ana", "user"), ("mia", "user"), ("hub", "hub")):
        shown = request_limits.credential_of(Headers({"Authorization": f"Bearer {who}-token"}))
        found.store(shown, f"{kind} {who}", exempt=kind != "user")
    return clock


async def test_a_flood_is_told_when_to_come_again_and_another_is_served(simulated, allowed):
    async with simulated.http() as http:

        async def ask(who: str):
            token = {"Authorization": f"Bearer {who}-token"}
            return await http.get("api/v1/projects", headers=token)

        flood = await asyncio.gather(*(ask("ana") for _ in range(3 * BURST)))
        other = await ask("mia")

    refused = [reply for reply in flood if reply.status_code != 200]
    assert {reply.status_code for reply in refused} == {429}
    assert {int(reply.headers["Retry-After"]) for reply in refused} <= {*range(5, 9)}
    assert {reply.json()["code"] for reply in refused} == {"too_many"}
    assert {reply.headers["Content-Type"] for reply in refused} == {"application/problem+json"}
    assert other.status_code == 200


@pytest.mark.parametrize(
    ("who", "path", "is_free"),
    [
        ("ana", "health/ready", True),
        ("ana", "static/live.js", True),
        ("ana", "metrics", False),
        ("ana", "healthy", False),
        ("hub", "metrics", True),
    ],
)
async def test_only_what_costs_nothing_or_is_the_platforms_own_is_free(
    simulated, allowed, who, path, is_free
):
    async with simulated.http(who) as http:
        replies = [await http.get(path) for _ in range(BURST + 5)]

    assert (429 in {reply.status_code for reply in replies}) != is_free


async def test_a_client_waits_as_it_is_told_and_stores_each_job_once(
    simulated, allowed, monkeypatch
):
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        allowed.at += seconds
        await asyncio.sleep(0)

    # Only the client's waits are replaced: the service beside it runs in real time.
    monkeypatch.setattr(transport, "asyncio", SimpleNamespace(sleep=sleep))
    names = [f"exp-{n}" for n in range(2 * BURST)]
    async with AsyncClient(simulated.url, "ana-token") as ana:
        for name in names:
            await ana.submit(SubmitRequest(name=name, gpus=1, command=["train"]))

    assert simulated.platform.callers.refused > 0
    assert any(seconds >= 1.0 for seconds in waited)
    stored = [record.spec.name for record in await simulated.platform.cluster.workloads()]
    assert stored == names


@pytest.mark.parametrize(
    ("error", "least"),
    [
        pytest.param(TooMany("no", retry_after=3), 3.0, id="too many"),
        pytest.param(Unavailable("no", retry_after=0), 0.0, id="away without a word"),
    ],
)
def test_a_client_waits_at_least_as_long_as_it_is_told(error, least):
    assert least <= Retries(5.0).delay(error) <= max(1.5 * least, 0.2)


def test_a_client_without_patience_is_told_at_once():
    with pytest.raises(TooMany):
        Retries(0.0).delay(TooMany("no", retry_after=1))


def test_patience_with_being_told_to_wait_ends_too():
    retries, waits = Retries(5.0), []

    def wait_and_wait() -> None:
        while True:
            waits.append(retries.delay(TooMany("no", retry_after=1)))

    with pytest.raises(TooMany):
        wait_and_wait()
    assert 30 < sum(waits) <= 60.0
