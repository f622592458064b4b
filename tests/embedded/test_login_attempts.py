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


class FakeClock:
    """A clock advanced by `sleep` only; with `wake_event`, sleeps wait for it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.wake_event: asyncio.Event | None = None

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.wake_event is not None:
            await self.wake_event.wait()


@pytest.fixture
def fake_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def attempts(fake_clock: FakeClock) -> LoginAttempts:
    return LoginAttempts(LOG, clock=fake_clock.clock, sleep=fake_clock.sleep, slot_timeout_s=0)


def check_taking(
    fake_clock: FakeClock, seconds: float, outcome: str | None
) -> Callable[[], Awaitable[str | None]]:
    async def check() -> str | None:
        fake_clock.now += seconds
        return outcome

    return check


async def try_wrong_passwords(attempts: LoginAttempts, name: str, times: int = 1) -> None:
    async def check() -> None:
        return None

    for _ in range(times):
        await attempts.answer(name, check)


@pytest.mark.parametrize("outcome", ["ana", None], ids=["right", "wrong"])
@pytest.mark.parametrize(
    ("hash_s", "sleep_s"),
    [(0.0, ANSWER_AFTER_S), (0.3, ANSWER_AFTER_S - 0.3), (7.0, 0.0)],
    ids=["at once", "fast", "slower than the answer"],
)
async def test_logins_with_right_and_wrong_passwords_are_answered_after_the_same_time(
    attempts: LoginAttempts,
    fake_clock: FakeClock,
    outcome: str | None,
    hash_s: float,
    sleep_s: float,
):
    answer = await attempts.answer("ana", check_taking(fake_clock, hash_s, outcome))

    assert answer == outcome
    assert fake_clock.slept == [pytest.approx(sleep_s)]


async def test_concurrent_login_attempts_for_one_account_do_not_queue(
    attempts: LoginAttempts, fake_clock: FakeClock
):
    fake_clock.wake_event = asyncio.Event()
    login_tasks = [
        asyncio.create_task(try_wrong_passwords(attempts, "ana")) for _ in range(AT_ONCE - 1)
    ]
    right_login = asyncio.create_task(attempts.answer("ana", check_taking(fake_clock, 0, "ana")))
    for _ in range(3):  # let each attempt reach its sleep
        await asyncio.sleep(0)

    assert fake_clock.slept == [ANSWER_AFTER_S] * AT_ONCE  # all attempts are under way
    fake_clock.wake_event.set()
    assert await right_login == "ana"
    await asyncio.gather(*login_tasks)


async def test_login_attempts_above_the_limit_are_refused_until_a_slot_is_free(
    attempts: LoginAttempts, fake_clock: FakeClock
):
    fake_clock.wake_event = asyncio.Event()
    login_tasks = [
        asyncio.create_task(try_wrong_passwords(attempts, f"u{number}"))
        for number in range(AT_ONCE)
    ]
    for _ in range(3):  # let each attempt reach its sleep
        await asyncio.sleep(0)
    with pytest.raises(NoFreeSlot):
        await attempts.answer("ana", check_taking(fake_clock, 0, "ana"))
    fake_clock.wake_event.set()
    await asyncio.gather(*login_tasks)

    assert await attempts.answer("ana", check_taking(fake_clock, 0, "ana")) == "ana"


async def test_login_check_that_raises_an_error_releases_its_slot(
    attempts: LoginAttempts, fake_clock: FakeClock
):
    async def fails() -> Any:
        raise OSError

    for _ in range(AT_ONCE + 1):
        with pytest.raises(OSError):
            await attempts.answer("ana", fails)


@pytest.mark.parametrize("outcome", ["ana", None], ids=["right", "wrong"])
async def test_login_after_many_wrong_passwords_is_answered_more_slowly(
    attempts: LoginAttempts,
    fake_clock: FakeClock,
    outcome: str | None,
    caplog: pytest.LogCaptureFixture,
):
    with caplog.at_level(logging.WARNING):
        await try_wrong_passwords(attempts, "ana", MAX_WRONG)
    before = set(fake_clock.slept)
    answer = await attempts.answer("ana", check_taking(fake_clock, 0, outcome))
    other = await attempts.answer("bo", check_taking(fake_clock, 0, "bo"))

    assert before == {ANSWER_AFTER_S}
    assert (answer, other) == (outcome, "bo")
    assert fake_clock.slept[-2:] == [SLOW_ANSWER_AFTER_S, ANSWER_AFTER_S]
    assert attempts.slowed(["ana", "bo"]) == ["ana"]
    assert [record.message for record in caplog.records] == [
        "50 wrong passwords for ana within an hour: each try for it takes 5 s now."
    ]


async def test_right_passwords_do_not_slow_later_logins(
    attempts: LoginAttempts, fake_clock: FakeClock
):
    for _ in range(2 * MAX_WRONG):
        await attempts.answer("ana", check_taking(fake_clock, 0, "ana"))

    assert attempts.slowed(["ana"]) == []


async def test_login_slowed_by_wrong_passwords_has_full_speed_after_an_hour(
    attempts: LoginAttempts, fake_clock: FakeClock
):
    await try_wrong_passwords(attempts, "ana", MAX_WRONG)
    fake_clock.now += WRONG_WITHIN_S

    assert attempts.slowed(["ana"]) == []


async def test_continued_password_guessing_is_logged_once(
    attempts: LoginAttempts, caplog: pytest.LogCaptureFixture
):
    await try_wrong_passwords(attempts, "ana", 3 * MAX_WRONG)

    assert len(caplog.records) == 1


async def test_user_name_of_a_login_attempt_is_escaped_and_shortened_in_the_log(
    attempts: LoginAttempts, caplog: pytest.LogCaptureFixture
):
    await try_wrong_passwords(attempts, "\x1b[2K\n" + "x" * 10_000, MAX_WRONG)

    assert "for \\x1b[2K\\nxxx" in caplog.text
    assert len(caplog.records[0].message) < 200


async def test_memory_for_login_attempts_with_many_names_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(login_attempts, "SLOTS", 16)
    attempts = LoginAttempts(LOG, clock=lambda: 0.0, sleep=lambda _: asyncio.sleep(0))
    for number in range(200):
        await try_wrong_passwords(attempts, f"name{number}")

    assert len(attempts._wrong) == 16
