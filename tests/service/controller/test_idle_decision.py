"""Decisions about idle allocations: tables of examples, and invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.controller.idle.decision import (
    IdleAction,
    IdleActionKind,
    Idleness,
    Measurement,
    due_in,
    evaluate,
    with_extension,
)
from runai.hub_service.model.records import IdleRules

MINUTE = 60
RELEASING = IdleRules(release_s=30 * MINUTE)
STOPPING = IdleRules(stop_s=60 * MINUTE)


class Story:
    """A workload that is measured every 10 s from time zero."""

    def __init__(self, rules: IdleRules, *, releases: bool = True) -> None:
        self.rules, self.releases = rules, releases
        self.known = Idleness(0.0)
        self.at = 0.0
        self.done: list[tuple[float, IdleActionKind]] = []

    def goes(self, minutes, busy=0.0, *, on_device=True, cpu=0.0):
        end = self.at + minutes * MINUTE
        while self.at < end:
            self.at += 10
            now = Measurement(self.at, 10, busy, on_device, cpu)
            self.known, action = evaluate(self.rules, self.known, now, releases=self.releases)
            if action is not None:
                self.done.append((self.at / MINUTE, action.kind))
        return self

    def keeps(self):
        more = with_extension(self.known)
        assert more is not None
        self.known = more
        return self


STORIES = {
    "by default one is shown and told, and nothing is taken": (
        Story(IdleRules()).goes(24 * 60),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY)],
    ),
    "work on the GPU begins anew": (
        Story(IdleRules()).goes(4).goes(1 / 6, busy=0.01).goes(4.5).goes(1),
        [(4 + 1 / 6 + 5, IdleActionKind.BADGE)],
    ),
    "less than a hundredth is no work": (
        Story(IdleRules()).goes(6, busy=0.009),
        [(5, IdleActionKind.BADGE)],
    ),
    "a project may release": (
        Story(RELEASING).goes(30),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY), (30, IdleActionKind.RELEASE)],
    ),
    "a project may stop": (
        Story(STOPPING, releases=False).goes(60),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY), (60, IdleActionKind.STOP)],
    ),
    "a job has nothing to release": (
        Story(RELEASING, releases=False).goes(90),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY)],
    ),
    "30 more minutes are 30 more minutes": (
        Story(RELEASING).goes(25).keeps().goes(35),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY), (60, IdleActionKind.RELEASE)],
    ),
    "who is at work on the processor gets the time once more, once": (
        Story(RELEASING).goes(60, cpu=1.0),
        [
            (5, IdleActionKind.BADGE),
            (20, IdleActionKind.NOTIFY),
            (30, IdleActionKind.EXTEND),
            (60, IdleActionKind.RELEASE),
        ],
    ),
    "what was never used is released after a quarter of an hour": (
        Story(RELEASING).goes(15, on_device=False),
        [(5, IdleActionKind.BADGE), (15, IdleActionKind.RELEASE)],
    ),
    "what was used once is not never used": (
        Story(RELEASING).goes(1).goes(28, on_device=False),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY)],
    ),
    "what is never used stays where a project releases nothing": (
        Story(IdleRules()).goes(60, on_device=False),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY)],
    ),
    "what nobody measured is not idle": (
        Story(RELEASING).goes(4).goes(600, busy=None).goes(0.5),
        [],
    ),
}


@pytest.mark.parametrize(("story", "expected"), STORIES.values(), ids=STORIES)
def test_idle_rules_trigger_each_action_on_time(story, expected):
    assert [(pytest.approx(at), do) for at, do in expected] == story.done


def test_more_time_is_given_twice_and_again_after_work():
    story = Story(RELEASING).goes(6).keeps().keeps()

    assert with_extension(story.known) is None
    assert with_extension(story.goes(1, busy=0.5).known) is not None


def test_it_is_told_what_comes_and_when():
    story = Story(RELEASING).goes(10)

    assert due_in(RELEASING, story.known) == (IdleActionKind.RELEASE, 20 * MINUTE)
    assert due_in(RELEASING, story.keeps().known) == (IdleActionKind.RELEASE, 50 * MINUTE)
    assert due_in(IdleRules(), story.known) is None


def test_the_numbers_come_with_the_decision():
    known = Idleness(0.0, idle_s=1795, used=True)

    assert evaluate(RELEASING, known, Measurement(10, 10, 0.0, on_device=True))[1] == IdleAction(
        IdleActionKind.RELEASE, 1805, 1800
    )


measurements = st.lists(
    st.builds(
        Measurement,
        at=st.floats(0, 20_000),
        interval=st.floats(0, 400),
        busy=st.sampled_from([None, 0.0, 0.0, 0.0, 0.009, 0.5]),
        on_device=st.booleans(),
        cpu=st.sampled_from([None, 0.0, 2.0]),
    ),
    max_size=200,
)
rules_of = st.builds(
    IdleRules,
    badge_s=st.none() | st.integers(1, 900),
    notify_s=st.none() | st.integers(1, 3000),
    release_s=st.none() | st.integers(1, 4000),
    stop_s=st.none() | st.integers(1, 4000),
)


@given(rules=rules_of, seen=measurements, releases=st.booleans())
def test_nothing_is_taken_without_a_rule_nor_before_its_time(rules, seen, releases):
    known, idle_since, extensions = Idleness(0.0), 0.0, 0
    for now in seen:
        if now.at > known.at and (now.busy or 0) >= 0.01:
            idle_since, extensions = now.at, 0
        known, action = evaluate(rules, known, now, releases=releases)
        if action is None:
            continue
        extensions += action.kind is IdleActionKind.EXTEND

        # No action comes before its time by the wall clock, even if measurements are late, repeated
        # or out of order.
        assert action.limit_s <= now.at - idle_since or action.never_used
        assert extensions <= 1
        if action.kind is IdleActionKind.RELEASE:
            assert releases
            assert rules.release_s is not None
        if action.kind is IdleActionKind.STOP:
            assert rules.stop_s is not None


@given(rules=rules_of, seen=measurements)
def test_the_same_measurement_twice_changes_nothing(rules, seen):
    known = Idleness(0.0)
    for now in seen:
        known, _ = evaluate(rules, known, now)

        assert evaluate(rules, known, now) == (known, None)
