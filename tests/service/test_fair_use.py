"""One person's flood is refused with a time to come again; others and the platform are not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from labs import Clock
from runai.hub_service import transport
from runai.hub_service.allowance import Allowance
from runai.hub_service.api import fair_use
from runai.hub_service.api.fair_use import BURST_S, Guests
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.calls import Retries
from runai.hub_service.client import AsyncClient
from runai.hub_service.errors import TooMany, Unavailable

RATE = 4
BURST = int(RATE * BURST_S)
ANA, MIA, BO = b"ana", b"mia", b"bo"


def guests(clock: Clock | None = None, **allowed: int) -> Guests:
    return Guests(Allowance(**allowed), clock=clock or Clock())


def calls(of: Guests, who: bytes, many: int) -> int:
    """Make so many calls one after the other; return how many were let in."""
    let_in = 0
    for _ in range(many):
        try:
            of.leave(of.enter(who, submits=False), submits=False)
        except TooMany:
            continue
        let_in += 1
    return let_in


def test_a_burst_is_let_in_and_then_as_much_as_time_brings():
    clock = Clock()
    here = guests(clock, calls_per_s=RATE)

    assert calls(here, ANA, 3 * BURST) == BURST
    clock.at += 2
    assert calls(here, ANA, 3 * BURST) == 2 * RATE
    clock.at += 1000
    assert calls(here, ANA, 3 * BURST) == BURST


def test_two_tokens_of_one_person_are_one_person_whose_flood_costs_another_nothing():
    here = guests(calls_per_s=RATE)
    for token in (b"laptop", b"notebook"):
        here.learn(token, "user ana", free=False)

    assert calls(here, b"laptop", BURST) + calls(here, b"notebook", BURST) == BURST
    assert calls(here, MIA, BURST) == BURST


def test_the_platforms_own_processes_are_not_counted():
    here = guests(calls_per_s=RATE, open_at_once=1)
    here.learn(b"token", "agent box", free=True)

    assert calls(here, b"token", 10 * BURST) == 10 * BURST
    assert calls(guests(), ANA, 1000) == 1000, "nobody is where nothing is set"


def test_what_is_open_counts_until_it_is_closed():
    here = guests(open_at_once=2)
    first = here.enter(ANA, submits=False)
    here.enter(ANA, submits=False)

    with pytest.raises(TooMany, match="2 of your calls and streams are open"):
        here.enter(ANA, submits=False)
    here.enter(MIA, submits=False)
    here.leave(first, submits=False)
    here.enter(ANA, submits=False)


def test_submissions_of_everybody_are_bounded_together():
    here = guests(submissions_at_once=2)
    one = here.enter(ANA, submits=True)
    here.enter(MIA, submits=True)

    with pytest.raises(Unavailable, match="2 submissions wait") as refused:
        here.enter(BO, submits=True)
    assert (refused.value.code, refused.value.retry_after) == ("busy", 2.0)
    here.enter(BO, submits=False)
    here.leave(one, submits=True)
    here.enter(BO, submits=True)


async def test_a_submission_that_comes_again_when_told_goes_before_others(simulated, monkeypatch):
    clock, here = Clock(), simulated.platform.guests
    monkeypatch.setattr(here, "allowance", Allowance(submissions_at_once=4))
    monkeypatch.setattr(here, "clock", clock)
    monkeypatch.setattr(fair_use, "HELD_S", 0.01)
    under_way = [here.enter(BO, submits=True) for _ in range(4)]

    async with simulated.http() as http:

        async def submit(who: str, key: str):
            shown = {"Authorization": f"Bearer {who}-token", "Idempotency-Key": key}
            wish = {"gpus": 1, "command": ["train"]}
            return await http.post("api/v1/workloads", headers=shown, json=wish)

        refused = await submit("ana", "the-first-of-ana")
        here.leave(under_way.pop(), submits=True)
        clock.at += int(refused.headers["Retry-After"])
        just_come = await submit("ana", "the-second-of-ana")
        anothers = await submit("mia", "the-first-of-ana")
        again = await submit("ana", "the-first-of-ana")

    assert (refused.status_code, refused.json()["code"]) == (503, "busy")
    assert [just_come.status_code, anothers.status_code] == [503, 503]
    assert again.status_code == 201


@pytest.fixture
def allowed(simulated, monkeypatch):
    """Let people make so many calls a second, by a clock that stands still."""
    clock = Clock()
    found = simulated.platform.guests
    monkeypatch.setattr(found, "allowance", Allowance(calls_per_s=RATE))
    monkeypatch.setattr(found, "clock", clock)
    monkeypatch.setattr(fair_use, "HELD_S", 0.01)
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
    assert {reply.headers["Retry-After"] for reply in refused} == {"1"}
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

    # The client's own waits alone: the service beside it has real time.
    monkeypatch.setattr(transport, "asyncio", SimpleNamespace(sleep=sleep))
    names = [f"exp-{n}" for n in range(2 * BURST)]
    async with AsyncClient(simulated.url, "ana-token") as ana:
        for name in names:
            await ana.submit(SubmitRequest(name=name, gpus=1, command=["train"]))

    assert simulated.platform.guests.refused > 0
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
