"""The rate limit of logins: equal answer times, bounded concurrency, no queue per account."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runai.embedded.accounts import login_attempts
from runai.embedded.accounts.login_attempts import (
    ANSWER_AFTER_S,
    AT_ONCE,
    MAX_WRONG,
    SLOW_ANSWER_AFTER_S,
    WRONG_WITHIN_S,
    LoginAttempts,
    NoFreeSlot,
)

LOG = logging.getLogger("hub")


class Time:
    """A clock advanced by `sleep` only; with `held`, sleeps wait until `wake`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.held: asyncio.Event | None = None

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.held is not None:
            await self.held.wait()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def attempts(time: Time) -> LoginAttempts:
    return LoginAttempts(LOG, clock=time.clock, sleep=time.sleep, slot_timeout_s=0)


def taking(time: Time, seconds: float, outcome: str | None) -> Callable[[], Awaitable[str | None]]:
    async def check() -> str | None:
        time.now += seconds
        return outcome

    return check


async def wrong(attempts: LoginAttempts, name: str, times: int = 1) -> None:
    async def check() -> None:
        return None

    for _ in range(times):
        await attempts.answer(name, check)


@pytest.mark.parametrize("outcome", ["ana", None], ids=["right", "wrong"])
@pytest.mark.parametrize(
    ("hashing", "slept"),
    [(0.0, ANSWER_AFTER_S), (0.3, ANSWER_AFTER_S - 0.3), (7.0, 0.0)],
    ids=["at once", "fast", "slower than the answer"],
)
async def test_every_answer_comes_at_the_same_time_after_its_begin(
    attempts: LoginAttempts, time: Time, outcome: str | None, hashing: float, slept: float
):
    answer = await attempts.answer("ana", taking(time, hashing, outcome))

    assert answer == outcome
    assert time.slept == [pytest.approx(slept)]


async def test_tries_of_one_account_do_not_queue(attempts: LoginAttempts, time: Time):
    time.held = asyncio.Event()
    tries = [asyncio.create_task(wrong(attempts, "ana")) for _ in range(AT_ONCE - 1)]
    right = asyncio.create_task(attempts.answer("ana", taking(time, 0, "ana")))
    for _ in range(3):
        await asyncio.sleep(0)

    assert time.slept == [ANSWER_AFTER_S] * AT_ONCE  # all attempts are under way
    time.held.set()
    assert await right == "ana"
    await asyncio.gather(*tries)


async def test_tries_beyond_the_places_are_refused_and_find_one_later(
    attempts: LoginAttempts, time: Time
):
    time.held = asyncio.Event()
    tries = [asyncio.create_task(wrong(attempts, f"u{number}")) for number in range(AT_ONCE)]
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(NoFreeSlot):
        await attempts.answer("ana", taking(time, 0, "ana"))
    time.held.set()
    await asyncio.gather(*tries)

    assert await attempts.answer("ana", taking(time, 0, "ana")) == "ana"


async def test_a_check_that_fails_gives_its_place_back(attempts: LoginAttempts, time: Time):
    async def fails() -> Any:
        raise OSError

    for _ in range(AT_ONCE + 1):
        with pytest.raises(OSError):
            await attempts.answer("ana", fails)


@pytest.mark.parametrize("outcome", ["ana", None], ids=["right", "wrong"])
async def test_an_account_with_many_wrong_tries_is_answered_more_slowly(
    attempts: LoginAttempts, time: Time, outcome: str | None, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        await wrong(attempts, "ana", MAX_WRONG)
    before = set(time.slept)
    answer = await attempts.answer("ana", taking(time, 0, outcome))
    other = await attempts.answer("bo", taking(time, 0, "bo"))

    assert before == {ANSWER_AFTER_S}
    assert (answer, other) == (outcome, "bo")
    assert time.slept[-2:] == [SLOW_ANSWER_AFTER_S, ANSWER_AFTER_S]
    assert attempts.slowed(["ana", "bo"]) == ["ana"]
    assert [record.message for record in caplog.records] == [
        "50 wrong passwords for ana within an hour: each try for it takes 5 s now."
    ]


async def test_right_tries_are_not_counted(attempts: LoginAttempts, time: Time):
    for _ in range(2 * MAX_WRONG):
        await attempts.answer("ana", taking(time, 0, "ana"))

    assert attempts.slowed(["ana"]) == []


async def test_an_account_is_answered_as_usual_an_hour_later(attempts: LoginAttempts, time: Time):
    await wrong(attempts, "ana", MAX_WRONG)
    time.now += WRONG_WITHIN_S

    assert attempts.slowed(["ana"]) == []


async def test_an_attack_that_goes_on_is_logged_once(
    attempts: LoginAttempts, caplog: pytest.LogCaptureFixture
):
    await wrong(attempts, "ana", 3 * MAX_WRONG)

    assert len(caplog.records) == 1


async def test_a_tried_name_is_printable_in_the_log(
    attempts: LoginAttempts, caplog: pytest.LogCaptureFixture
):
    await wrong(attempts, "\x1b[2K\n" + "x" * 10_000, MAX_WRONG)

    assert "for \\x1b[2K\\nxxx" in caplog.text
    assert len(caplog.records[0].message) < 200


async def test_any_number_of_tried_names_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(login_attempts, "SLOTS", 16)
    attempts = LoginAttempts(LOG, clock=lambda: 0.0, sleep=lambda _: asyncio.sleep(0))
    for number in range(200):
        await wrong(attempts, f"name{number}")

    assert len(attempts._wrong) == 16
