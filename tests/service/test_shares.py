"""A person's part of the event loop's time: who asks for more than others waits, and only they."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as some

from labs import Clock
from runai.hub_service.allowance import Allowance
from runai.hub_service.api import fair_use, submitting
from runai.hub_service.api.fair_use import LONGEST_WAIT_S, Guests
from runai.hub_service.api.metering import metered
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.api.shares import (
    ASKS_S,
    FEW,
    FLOODS_S,
    FULL_S,
    LATELY_S,
    MANY,
    MOST_OWED_S,
    STEPS,
    TOGETHER,
    TURNS_ABOVE,
    Share,
    Shares,
    Together,
)
from runai.hub_service.errors import TooMany

LEAST = 0.15
STEP_S = 0.01


class Loop:
    """People who take steps of a loop, one after the other, in its own time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.shares = Shares(LEAST, self.clock)

    def new(self) -> Share:
        return self.shares.new()

    def take(self, share: Share, seconds: float) -> None:
        self.clock.at += seconds
        share.spend(seconds)

    def play(self, seconds: float, *wants: tuple[Share, float]) -> dict[Share, float]:
        """Let each ask for such a part of the time, while it may; return what each got."""
        got = dict.fromkeys((share for share, _ in wants), 0.0)
        end, began = self.clock.at + seconds, self.clock.at
        while self.clock.at < end:
            self.clock.at += STEP_S / 10
            for share, part in wants:
                due = got[share] < part * (self.clock.at - began)
                if due and share.wait_s() == 0:
                    self.take(share, STEP_S)
                    got[share] += STEP_S
        return {share: each / (self.clock.at - began) for share, each in got.items()}


def test_who_is_alone_has_all_the_time():
    loop = Loop()
    ana = loop.new()

    assert loop.play(20, (ana, 1.0))[ana] > 0.85


@pytest.mark.parametrize(
    ("calls", "is_refused", "part"),
    [
        pytest.param(FEW, False, None, id="few at once: what others leave"),
        pytest.param(FEW + 1, False, 1 / 2, id="more at once: an even part"),
        pytest.param(MANY, False, 1 / 2, id="as many as may be"),
        pytest.param(MANY + 1, False, LEAST, id="a flood at once"),
        pytest.param(1, True, LEAST, id="was refused for asking too often"),
    ],
)
def test_who_asks_for_all_the_time_beside_somebody_who_asks_little(calls, is_refused, part):
    loop = Loop()
    busy, quiet = loop.new(), loop.new()
    loop.play(5, (busy, 1.0), (quiet, 0.02))  # until it is seen that they do
    got = loop.play(60, (busy, 1.0), (quiet, 0.02))
    busy.waiting = calls
    if is_refused:
        busy.flooded()

    assert got[quiet] == pytest.approx(0.02, rel=0.1)
    assert got[busy] == pytest.approx(TOGETHER - 0.02, rel=0.1)  # nothing waits at the door
    left = TOGETHER - quiet.rate(loop.clock())
    assert loop.shares.part(busy) == pytest.approx(left if part is None else part)


def test_who_was_refused_is_taken_for_a_flood_for_a_while():
    loop = Loop()
    flood, quiet = loop.new(), loop.new()
    loop.play(5, (flood, 1.0), (quiet, 0.02))
    flood.flooded()
    loop.clock.at += FLOODS_S
    loop.take(flood, STEP_S)
    loop.take(quiet, STEP_S)

    assert loop.shares.part(flood) > LEAST


def test_who_asks_for_an_even_part_does_not_fall_behind_after_a_standstill():
    """Beside somebody who asks for little, with all that came while nothing could be done."""
    loop = Loop()
    busy, other = loop.new(), loop.new()
    loop.clock.at += 2.0
    loop.take(busy, 1.0)

    got = loop.play(60, (busy, 0.5), (other, 0.1))

    assert got[other] == pytest.approx(0.1, rel=0.1)
    assert got[busy] >= 0.95 * 0.5


@given(part=some.floats(0.001, 0.1), others=some.integers(1, 4))
def test_who_asks_for_less_than_the_least_part_never_waits(part, others):
    loop = Loop()
    quiet = loop.new()

    got = loop.play(10, (quiet, part), *[(loop.new(), 1.0 / others) for _ in range(others)])

    assert got[quiet] >= 0.8 * part - STEP_S


def test_who_asks_for_very_much_at_once_is_a_flood_from_the_start_beside_others():
    loop = Loop()
    flood, page, quiet = loop.new(), loop.new(), loop.new()
    loop.take(quiet, 0.001)
    for share, calls in ((flood, 40), (page, 6)):
        loop.take(share, FULL_S)  # all that it may take at once
        share.waiting = calls

    assert flood.wait_s() > 0
    assert page.wait_s() == 0


def test_who_asks_for_less_than_half_never_waits_beside_a_flood():
    """Also where a flood, which is held, takes less than they do."""
    loop = Loop()
    flood, busy = loop.new(), loop.new()
    loop.play(5, (flood, 1.0), (busy, 0.01))  # it is held to little

    got = loop.play(60, (flood, 1.0), (busy, 0.4))

    assert got[busy] == pytest.approx(0.4, rel=0.05)


def test_two_floods_leave_no_time_unused():
    loop = Loop()

    got = loop.play(30, (loop.new(), 1.0), (loop.new(), 1.0))

    assert sum(got.values()) > 0.75


def test_a_flood_has_all_the_time_again_when_others_are_gone():
    loop = Loop()
    flood, quiet = loop.new(), loop.new()
    loop.play(10, (flood, 1.0), (quiet, 0.02))

    loop.clock.at += ASKS_S

    assert loop.play(20, (flood, 1.0))[flood] > 0.85


def test_one_long_call_is_not_held_against_its_caller_for_ever():
    loop = Loop()
    ana, mia = loop.new(), loop.new()
    loop.take(mia, STEP_S)
    loop.take(ana, 60.0)
    loop.take(mia, STEP_S)

    assert ana.wait_s() <= (MOST_OWED_S + FULL_S) / LEAST


async def test_calls_of_one_person_go_in_as_they_came():
    loop = Loop()
    ana, mia = loop.new(), loop.new()
    ana.spend(2.0)
    mia.spend(0.001)
    entered: list[int] = []

    async def enter(number: int) -> None:
        await ana.enter()
        entered.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(enter(number))
        await asyncio.sleep(0)
        assert entered == []
        loop.clock.at += 100

    assert entered == [0, 1, 2, 3, 4]


async def test_many_calls_of_one_person_at_once_are_begun_one_in_each_turn_of_the_loop():
    shares = Loop()
    flood, quiet = shares.new(), shares.new()
    order: list[str] = []

    async def ask(share: Share, name: str) -> None:
        await share.enter()
        order.append(name)

    calls = [asyncio.ensure_future(ask(flood, "flood")) for _ in range(9)]
    calls.append(asyncio.ensure_future(ask(quiet, "quiet")))
    await asyncio.gather(*calls)

    assert order == ["flood", "quiet", *["flood"] * 8]


@pytest.mark.parametrize(
    ("quiet_asks", "at_once"),
    [pytest.param(False, 3 * STEPS, id="alone"), pytest.param(True, STEPS, id="beside others")],
)
async def test_of_many_calls_of_one_person_few_go_on_in_each_turn_of_the_loop(quiet_asks, at_once):
    """First come, first served: a long one does not go before the others each time."""
    shares = Loop()
    flood, quiet = shares.new(), shares.new()
    flood.spend(2 * TURNS_ABOVE * LATELY_S)
    if quiet_asks:
        quiet.spend(0.001)
    order, names = list[str](), [str(n) for n in range(3 * STEPS)]

    async def call(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            order.append(name)

    calls = asyncio.gather(*[metered(call(name), flood) for name in names])
    while not calls.done():
        await asyncio.sleep(0)
        order.append("|")
    await calls

    assert [name for name in order if name != "|"] == 3 * names
    assert max(len(turn.split()) for turn in " ".join(order).split("|")) == at_once


def test_who_would_wait_for_long_is_told_to_come_again():
    clock = Clock()
    here = Guests(Allowance(time_percent=10), clock=clock)
    mia = here.enter(b"mia", submits=False)
    ana = here.enter(b"ana", submits=False)
    assert ana.share is not None
    assert mia.share is not None
    mia.share.spend(0.001)
    ana.share.spend(5.0)
    ana.share.waiting = 50

    with pytest.raises(TooMany, match="take so much of the service's time") as refused:
        here.enter(b"ana", submits=False)

    assert refused.value.retry_after > LONGEST_WAIT_S
    here.enter(b"mia", submits=False)


# -- what is counted -----------------------------------------------------------------------------


async def test_who_submits_is_charged_for_the_decision(simulated, monkeypatch):
    ana, charges = await simulated.client("ana"), list[float]()
    monkeypatch.setattr(submitting, "charge", charges.append)

    await ana.submit(SubmitRequest(gpus=1, command=["train"]))

    (charge,) = charges
    assert charge > 0


async def test_who_waits_for_the_same_decision_pays_for_what_they_brought():
    together, first, second = Together(), asyncio.Event(), asyncio.Event()

    async def wait(event: asyncio.Event) -> None:
        await event.wait()

    waiting = [
        asyncio.create_task(together.told(wait(first), brought, within_s=60))
        for brought in (1, 1, 6)
    ]
    gone = asyncio.create_task(together.told(wait(first), 1000, within_s=60))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await asyncio.sleep(0)
    first.set()
    told = await asyncio.gather(*waiting)
    await asyncio.sleep(0)
    second.set()

    assert told == [1 / 8, 1 / 8, 6 / 8]
    assert await together.told(wait(second), 1, within_s=60) == 1


async def test_who_has_waited_long_enough_pays_no_more_than_their_part():
    together, never = Together(), asyncio.Event()

    async def wait() -> None:
        await never.wait()

    array = asyncio.create_task(together.told(wait(), 9, within_s=60))
    await asyncio.sleep(0)

    assert await together.told(wait(), 1, within_s=0) == 1 / 10
    array.cancel()


# -- at the door ---------------------------------------------------------------------------------


async def test_beside_a_flood_others_are_answered_first(simulated, monkeypatch):
    """Counted in calls, not in time: the flood has taken what is its own, and waits."""
    clock = Clock()
    found = simulated.platform.guests
    monkeypatch.setattr(found, "allowance", Allowance(time_percent=10))
    monkeypatch.setattr(found, "clock", clock)
    monkeypatch.setattr(fair_use, "HELD_S", 0.01)
    async with simulated.http() as http:

        async def ask(who: str) -> int:
            headers = {"Authorization": f"Bearer {who}-token"}
            return int((await http.get("api/v1/whoami", headers=headers)).status_code)

        assert (await ask("ana"), await ask("mia")) == (200, 200)
        flood_of = found._guests["user ana"].share
        found._guests["user mia"].share.spend(0.001)
        flood_of.spend(1.0)
        flood = [asyncio.create_task(ask("ana")) for _ in range(5)]

        assert [await ask("mia") for _ in range(5)] == [200] * 5
        assert not any(task.done() for task in flood)
        clock.at += 100
        assert await asyncio.gather(*flood) == [200] * 5


@pytest.mark.parametrize("who", ["ana", "mia"], ids=["who floods", "anybody else"])
async def test_what_who_floods_submits_makes_no_cycle_of_its_own(simulated, monkeypatch, who):
    found, cluster = simulated.platform.guests, simulated.platform.cluster
    clock, pressed, submit = Clock(), list[bool](), simulated.platform.cluster.submit

    async def told(specs, *, pressing: bool = True):
        pressed.append(pressing)
        return await submit(specs, pressing=pressing)

    monkeypatch.setattr(found, "allowance", Allowance(time_percent=10))
    monkeypatch.setattr(found, "clock", clock)
    monkeypatch.setattr(cluster, "submit", told)
    async with simulated.http() as http:

        async def ask(name: str, method: str, path: str, body: object = None) -> int:
            headers = {"Authorization": f"Bearer {name}-token"}
            reply = await http.request(method, path, headers=headers, json=body)
            return int(reply.status_code)

        for name in ("ana", "mia"):
            await ask(name, "GET", "api/v1/whoami")
        found._guests["user mia"].share.spend(0.001)
        for _ in range(2):  # more than mia leaves
            found._guests["user ana"].share.spend(1.0)
        clock.at += 0.2
        assert found._guests["user ana"].share.wait_s() > 0
        clock.at += 1.0
        found._guests["user mia"].share.spend(0.001)
        body = {"project": "vision", "gpus": 1, "command": ["train"]}
        submitted = asyncio.create_task(ask(who, "POST", "api/v1/workloads", body))
        while not submitted.done():
            clock.at += 0.1
            await asyncio.sleep(0.01)

    assert submitted.result() == 201
    assert pressed == [who != "ana"]
