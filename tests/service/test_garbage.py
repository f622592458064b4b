"""Circles are looked for seldom, but are found: memory is bounded, and nobody waits for a look."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from runai.hub_service.garbage import GROWN, LITTLE, Aside, collect_seldom


class Circle:
    """Refers to itself, so that only a look finds it dead."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
    gc.collect()


def looks_at_all() -> int:
    return int(gc.get_stats()[2]["collections"])


def test_python_itself_never_looks_at_everything():
    collect_seldom()
    before = looks_at_all()
    kept = [[None] for _ in range(300_000)]

    assert looks_at_all() == before
    assert kept


def test_what_has_lived_for_a_while_is_put_aside_and_looked_at_no_more():
    aside, lives = Aside(blocks=lambda: 1), [Circle() for _ in range(1000)]
    aside.look()

    assert gc.get_freeze_count() >= len(lives)
    assert aside.look() is False


def test_a_circle_that_dies_young_is_found_at_the_next_look():
    aside = Aside(blocks=lambda: 1)
    aside.look()
    circle = weakref.ref(Circle())
    aside.look()

    assert circle() is None


def test_circles_that_die_aside_are_found_when_there_is_twice_as_much():
    there = 10 * LITTLE
    aside = Aside(blocks=lambda: there)
    aside.look()
    lived = Circle()
    circle = weakref.ref(lived)
    aside.look()
    del lived
    there = int(GROWN * there) + LITTLE
    assert aside.look() is False
    assert circle() is not None

    there += 1

    assert aside.look() is True
    assert circle() is None
