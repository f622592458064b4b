"""Long work yields to the event loop between its parts, and leaves it most time."""

from __future__ import annotations

import pytest

from runai.hub_service.processes.giving_way import LONGEST_S, RESTS, SHORT_S, SOMETHING_S, Way


class Loop:
    """An event loop's clock: time passes in parts, in sleeps and while other tasks run."""

    def __init__(self, others: float) -> None:
        self.now, self.others, self.slept = 0.0, others, 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += seconds or self.others


@pytest.mark.parametrize(
    ("part", "others", "rests"),
    [
        pytest.param(0.004, 0.0, 0.0, id="nobody else has anything to do"),
        pytest.param(0.004, SOMETHING_S / 2, 0.0, id="next to nothing"),
        pytest.param(0.004, 0.002, 0.004 * RESTS, id="others have something to do"),
        pytest.param(0.004, 0.2, 0.004 * RESTS, id="others have much to do"),
        pytest.param(1.0, 0.002, LONGEST_S, id="the part was held up"),
        pytest.param(0.0, 0.002, 0.0, id="nothing was done: virtual time"),
    ],
)
async def test_long_work_pauses_after_each_part_if_other_tasks_are_busy(part, others, rests):
    loop = Loop(others)
    way = Way(lambda: loop.now, loop.sleep)
    loop.now += 2 * SHORT_S
    await way.give()
    loop.slept = 0.0

    for _ in range(3):
        loop.now += part
        await way.give()

    assert loop.slept == pytest.approx(3 * rests)
    assert way.passed == pytest.approx(2 * SHORT_S + 3 * part + 4 * others)


async def test_short_work_does_not_pause():
    loop = Loop(0.002)
    way = Way(lambda: loop.now, loop.sleep)

    for _ in range(3):
        loop.now += SHORT_S / 4
        await way.give()

    assert loop.slept == 0.0


async def test_passed_time_includes_current_part_and_excludes_pauses():
    loop = Loop(0.002)
    way = Way(lambda: loop.now, loop.sleep)
    loop.now += 2 * SHORT_S
    await way.give()
    loop.now += 0.02

    assert loop.slept > 0
    assert way.passed == pytest.approx(2 * SHORT_S + 0.002 + 0.02)
