"""Streams are drawn in the time that nobody else needs."""

from __future__ import annotations

import pytest

from runai.hub_service.api.turns import LONGEST, RESTS, Turns


class Machine:
    """Time that passes in sleeps only, and a part of it in which the service works."""

    def __init__(self, busy: float) -> None:
        self.now, self.busy, self.sleeps = 0.0, busy, 0

    def times(self) -> tuple[float, float]:
        return self.now, self.now * self.busy

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        self.sleeps += 1


@pytest.mark.parametrize(
    ("busy", "rests"),
    [
        pytest.param(0.0, RESTS, id="nothing else to do"),
        pytest.param(0.5, 2 * RESTS, id="half of the time is others'"),
        pytest.param(0.75, 4 * RESTS, id="most of it is"),
        pytest.param(0.9, LONGEST, id="nearly all of it is"),
        pytest.param(1.0, LONGEST, id="there is no time left"),
        pytest.param(1.5, LONGEST, id="threads work beside it"),
    ],
)
async def test_after_a_turn_nobody_draws_until_there_was_time(busy, rests):
    machine = Machine(busy)
    turns = Turns(machine.times, machine.sleep)

    async with turns.turn():
        machine.now = 1.0

    assert rests <= machine.now - 1.0 < rests + 1.0
    assert machine.sleeps <= RESTS + LONGEST


async def test_after_each_step_of_a_turn_nobody_draws_until_there_was_time():
    machine = Machine(0.5)
    turns = Turns(machine.times, machine.sleep)

    async with turns.turn() as rest:
        for step in (1.0, 2.0, 3.0):
            before = machine.now + step
            machine.now = before
            await rest(step)
            assert 2 * RESTS * step <= machine.now - before < (2 * RESTS + 1) * step
        machine.now, before = machine.now + 4.0, machine.now + 4.0

    assert 2 * RESTS * 4 <= machine.now - before < (2 * RESTS + 1) * 4


async def test_a_drawing_that_fails_rests_like_any_other():
    machine = Machine(0.0)
    turns = Turns(machine.times, machine.sleep)

    async def fail() -> None:
        async with turns.turn():
            machine.now = 1.0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()

    assert machine.now == 1.0 + RESTS
