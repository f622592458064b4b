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
from runai.hub_service.wire.workload_request import SubmitRequest

CALLS_PER_S = 4
BURST = CALLS_PER_S * WINDOW_S
ANA, MIA, BO = b"ana", b"mia", b"bo"


@pytest.fixture
def clock(monkeypatch):
    """Measure the window of calls by a clock that stands still."""
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


def callers(**allowed: int) -> CallerLimits:
    """Return the limits, with every user's credential already identified."""
    limiter = CallerLimits(Allowance(**allowed))
    for user in (ANA, MIA, BO):
        limiter.store(user, f"user {user.decode()}", exempt=False)
    return limiter


def make_calls(limiter: CallerLimits, user: bytes, count: int) -> int:
    """Make the given number of calls one after the other; return how many were accepted."""
    accepted = 0
    for _ in range(count):
        try:
            name = limiter.enter(user, submits=False)
        except TooMany:
            continue
        limiter.leave(name, submits=False)
        accepted += 1
    return accepted


def test_request_burst_is_accepted_then_refused_until_the_window_has_passed(clock):
    limiter = callers(calls_per_s=CALLS_PER_S)

    assert make_calls(limiter, ANA, 3 * BURST) == BURST
    clock.at += WINDOW_S - 1
    with pytest.raises(TooMany, match="more than 4 times a second") as refused:
        limiter.enter(ANA, submits=False)
    assert 1.0 <= refused.value.retry_after <= JITTER
    clock.at += 1.5
    assert make_calls(limiter, ANA, 3 * BURST) == BURST


def test_tokens_of_one_user_share_a_rate_limit_separate_from_other_users(clock):
    limiter = callers(calls_per_s=CALLS_PER_S)
    for token in (b"laptop", b"notebook"):
        limiter.store(token, "user ana", exempt=False)

    assert make_calls(limiter, b"laptop", BURST) + make_calls(limiter, b"notebook", BURST) == BURST
    assert make_calls(limiter, MIA, BURST) == BURST


def test_platform_processes_are_exempt_from_the_rate_limit():
    limiter = callers(calls_per_s=CALLS_PER_S, open_at_once=1)
    limiter.store(b"token", "agent box", exempt=True)

    assert make_calls(limiter, b"token", 10 * BURST) == 10 * BURST
    assert make_calls(callers(), ANA, 1000) == 1000, "no limit is set"


def test_open_calls_beyond_the_users_limit_are_refused_until_a_call_closes():
    limiter = callers(open_at_once=2)
    first = limiter.enter(ANA, submits=False)
    limiter.enter(ANA, submits=False)

    with pytest.raises(TooMany, match="2 of your calls and streams are open"):
        limiter.enter(ANA, submits=False)
    limiter.enter(MIA, submits=False)
    limiter.leave(first, submits=False)
    limiter.enter(ANA, submits=False)


def test_concurrent_submissions_of_all_users_share_one_limit():
    limiter = callers(submissions_at_once=2)
    first = limiter.enter(ANA, submits=True)
    limiter.enter(MIA, submits=True)

    with pytest.raises(Unavailable, match="2 submissions wait") as refused:
        limiter.enter(BO, submits=True)
    assert refused.value.code == "busy"
    assert BUSY_S <= refused.value.retry_after <= BUSY_S * JITTER
    limiter.enter(BO, submits=False)
    limiter.leave(first, submits=True)
    limiter.enter(BO, submits=True)


def test_unknown_credentials_share_one_request_rate_limit(clock):
    limiter = CallerLimits(Allowance(calls_per_s=CALLS_PER_S))
    credentials = [str(n).encode() for n in range(2 * UNKNOWN_RATE_FACTOR * BURST)]

    assert (
        sum(make_calls(limiter, credential, 1) for credential in credentials)
        == UNKNOWN_RATE_FACTOR * BURST
    )
    limiter.store(ANA, "user ana", exempt=False)
    assert make_calls(limiter, ANA, 2 * BURST) == BURST


def test_rate_limiter_remembers_a_bounded_number_of_credentials():
    limiter = callers(open_at_once=1)
    for number in range(2 * MOST_KNOWN):
        limiter.store(str(number).encode(), f"user {number}", exempt=False)

    assert len(limiter._owners) <= MOST_KNOWN


@pytest.mark.parametrize(
    ("user", "query", "streams", "started_calls"),
    [
        pytest.param("ana", b"", False, AT_ONCE, id="calls"),
        pytest.param("ana", b"", True, 2 * AT_ONCE, id="begun streams"),
        pytest.param("ana", b"changed_from=1", False, 2 * AT_ONCE, id="long polls"),
        pytest.param("hub", b"", False, 2 * AT_ONCE, id="calls of the platform"),
    ],
)
async def test_concurrent_calls_of_one_user_are_limited(user, query, streams, started_calls):
    limiter, started, release = CallerLimits(), Counter[str](), asyncio.Event()

    async def app(scope, receive, send):
        started[scope["path"]] += 1
        if streams:
            await send({"type": "http.response.start", "status": 200})
        await release.wait()

    async def receive():
        return {}

    async def send(message):
        pass

    limits = RequestLimits(app, prefix="/", free=(), refuse=lambda _error: app)

    async def call(name: str) -> None:
        headers = {"authorization": f"Bearer {name}"}
        limiter.store(credential_of(Headers(headers)), name, exempt=name == "hub")
        state = SimpleNamespace(platform=SimpleNamespace(caller_limits=limiter))
        scope = {
            "type": "http",
            "method": "GET",
            "path": name,
            "query_string": query,
            "headers": Headers(headers).raw,
            "app": SimpleNamespace(state=state),
        }
        await limits(scope, receive, send)

    tasks = [asyncio.create_task(call(name)) for name in [*[user] * 2 * AT_ONCE, "mia"]]
    await asyncio.sleep(0)  # every admitted call has started
    assert started == {user: started_calls, "mia": 1}
    release.set()
    await asyncio.gather(*tasks)

    assert started[user] == 2 * AT_ONCE


@pytest.fixture
def limited_clock(simulated, monkeypatch, clock):
    """Allow each identified user the given number of calls a second."""
    limiter = simulated.platform.caller_limits
    monkeypatch.setattr(limiter, "allowance", Allowance(calls_per_s=CALLS_PER_S))
    monkeypatch.setattr(request_limits, "REFUSAL_DELAY_S", 0.01)
    for user, kind in (("ana", "user"), ("mia", "user"), ("hub", "hub")):
        credential = request_limits.credential_of(
            Headers({"Authorization": f"Bearer {user}-token"})
        )
        limiter.store(credential, f"{kind} {user}", exempt=kind != "user")
    return clock


async def test_request_flood_is_refused_with_a_retry_time_and_other_users_are_served(
    simulated, limited_clock
):
    async with simulated.http() as http:

        async def list_projects(user: str):
            token = {"Authorization": f"Bearer {user}-token"}
            return await http.get("api/v1/projects", headers=token)

        flood = await asyncio.gather(*(list_projects("ana") for _ in range(3 * BURST)))
        other = await list_projects("mia")

    refused = [reply for reply in flood if reply.status_code != 200]
    assert {reply.status_code for reply in refused} == {429}
    # The window of 5 s, times up to 1.5 so that clients do not return together.
    assert {int(reply.headers["Retry-After"]) for reply in refused} <= {*range(5, 9)}
    assert {reply.json()["code"] for reply in refused} == {"too_many"}
    assert {reply.headers["Content-Type"] for reply in refused} == {"application/problem+json"}
    assert other.status_code == 200


@pytest.mark.parametrize(
    ("user", "path", "is_free"),
    [
        ("ana", "health/ready", True),
        ("ana", "static/live.js", True),
        ("ana", "metrics", False),
        ("ana", "healthy", False),
        ("hub", "metrics", True),
    ],
)
async def test_health_checks_static_assets_and_platform_calls_are_not_rate_limited(
    simulated, limited_clock, user, path, is_free
):
    async with simulated.http(user) as http:
        replies = [await http.get(path) for _ in range(BURST + 5)]

    assert (429 in {reply.status_code for reply in replies}) != is_free


async def test_client_retries_after_the_given_wait_and_stores_each_job_once(
    simulated, limited_clock, monkeypatch
):
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        limited_clock.at += seconds
        await asyncio.sleep(0)

    # Only the client's waits are replaced: the service beside it runs in real time.
    monkeypatch.setattr(transport, "asyncio", SimpleNamespace(sleep=sleep))
    names = [f"exp-{n}" for n in range(2 * BURST)]
    async with AsyncClient(simulated.url, "ana-token") as ana:
        for name in names:
            await ana.submit(SubmitRequest(name=name, gpus=1, command=["train"]))

    assert simulated.platform.caller_limits.refused > 0
    assert any(seconds >= 1.0 for seconds in waited)
    stored = [record.spec.name for record in await simulated.platform.cluster.workloads()]
    assert stored == names


@pytest.mark.parametrize(
    ("error", "min_delay_s"),
    [
        pytest.param(TooMany("no", retry_after=3), 3.0, id="too many"),
        pytest.param(Unavailable("no", retry_after=0), 0.0, id="unavailable without a wait"),
    ],
)
def test_client_retry_delay_is_not_below_the_retry_after_time(error, min_delay_s):
    assert min_delay_s <= Retries(5.0).delay(error) <= max(1.5 * min_delay_s, 0.2)


def test_client_without_patience_raises_too_many_requests_at_once():
    with pytest.raises(TooMany):
        Retries(0.0).delay(TooMany("no", retry_after=1))


def test_client_gives_up_after_a_minute_of_requested_waits():
    retries, waits = Retries(5.0), []

    def wait_until_refused() -> None:
        while True:
            waits.append(retries.delay(TooMany("no", retry_after=1)))

    with pytest.raises(TooMany):
        wait_until_refused()
    assert 30 < sum(waits) <= 60.0
