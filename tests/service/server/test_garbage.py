"""Garbage collection runs rarely but finds cycles: memory is bounded, and no request waits."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from runai.hub_service.server.garbage import (
    GROWN,
    LATEST,
    LITTLE,
    MUCH,
    UNSEEN,
    Aside,
    collect_seldom,
)
from waiting import eventually_async


class Circle:
    """An object that refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def looks_at_all() -> int:
    return int(gc.get_stats()[2]["collections"])


def test_python_itself_never_looks_at_everything():
    collect_seldom()
    before = looks_at_all()
    kept = [[None] for _ in range(300_000)]

    assert looks_at_all() == before
    assert kept


def test_first_check_freezes_startup_objects_without_full_collection():
    lives, before = [Circle() for _ in range(1000)], looks_at_all()

    assert Aside().look() is False
    assert looks_at_all() == before
    assert gc.get_freeze_count() >= len(lives)


async def test_objects_loaded_before_start_trigger_no_full_collection():
    there, begun = LITTLE, asyncio.Event()
    aside = Aside(blocks=lambda: there)
    running = asyncio.create_task(aside.run(begun.wait()))
    await asyncio.sleep(0)
    there = int(2 * LATEST * LITTLE)
    before = looks_at_all()
    begun.set()
    await eventually_async(gc.get_freeze_count)
    running.cancel()

    assert looks_at_all() == before
    assert aside.look() is False


def test_check_freezes_live_objects_and_then_runs_no_full_collection():
    aside, lives = Aside(blocks=lambda: 1), [Circle() for _ in range(1000)]
    aside.look()

    assert gc.get_freeze_count() >= len(lives)
    assert aside.look() is False


def test_collector_examines_new_objects_only_once():
    aside = Aside(blocks=lambda: 1)
    aside.look()
    lived = Circle()
    circle = weakref.ref(lived)
    aside.look_at_what_is_new()
    del lived
    aside.look_at_what_is_new()

    assert circle() is not None


def test_collector_skips_objects_already_examined_by_python():
    collect_seldom()
    aside = Aside(blocks=lambda: 1)
    aside.look()
    lived = Circle()
    circle = weakref.ref(lived)
    kept = [[None] for _ in range(2 * UNSEEN)]
    del lived
    aside.look_at_what_is_new()

    assert circle() is not None
    assert kept


def test_a_circle_that_dies_young_is_found_at_the_next_look():
    aside = Aside(blocks=lambda: 1)
    aside.look()
    circle = weakref.ref(Circle())
    aside.look_at_what_is_new()

    assert circle() is None


async def test_scheduler_collects_new_objects_periodically(monkeypatch):
    monkeypatch.setattr("runai.hub_service.server.garbage.YOUNG_S", 0.0)
    begun = asyncio.Event()
    begun.set()
    running = asyncio.create_task(Aside(blocks=lambda: 1).run(begun.wait()))
    await eventually_async(gc.get_freeze_count)
    circle = weakref.ref(Circle())
    await eventually_async(lambda: circle() is None)
    running.cancel()


@pytest.mark.parametrize(
    ("there", "enough", "busy"),
    [
        pytest.param(10 * LITTLE, (10 * GROWN + 1) * LITTLE, 0.1, id="twice as much, little to do"),
        pytest.param(10 * LITTLE, 10 * LATEST * LITTLE, 0.9, id="eight times as much"),
        pytest.param(LITTLE, LITTLE + MUCH, 0.9, id="eight times of little is not enough"),
    ],
)
def test_circles_that_die_aside_are_found_when(there, enough, busy):
    now = 0.0
    aside = Aside(blocks=lambda: there, times=lambda: (now, busy * now))
    aside.look()
    lived = Circle()
    circle = weakref.ref(lived)
    aside.look()
    del lived
    there = int(enough)
    now += 10
    assert aside.look() is False
    assert circle() is not None

    there += 1
    now += 10

    assert aside.look() is True
    assert circle() is None


def test_busy_process_runs_no_full_collection_up_to_eightfold_growth():
    there, now = 10 * LITTLE, 0.0
    aside = Aside(blocks=lambda: there, times=lambda: (now, 0.9 * now))
    aside.look()
    there = int(LATEST * there)
    now += 10

    assert aside.look() is False
