"""Decisions about idle allocations: tables of examples, and invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.controller.idle.idleness import (
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


class IdleSimulation:
    """A workload that is measured every 10 s from time zero."""

    def __init__(self, rules: IdleRules, *, releases: bool = True) -> None:
        self.rules, self.releases = rules, releases
        self.idleness = Idleness(0.0)
        self.at = 0.0
        self.actions: list[tuple[float, IdleActionKind]] = []

    def advance(self, minutes, busy=0.0, *, on_device=True, cpu=0.0):
        end = self.at + minutes * MINUTE
        while self.at < end:
            self.at += 10
            measurement = Measurement(self.at, 10, busy, on_device, cpu)
            self.idleness, action = evaluate(
                self.rules, self.idleness, measurement, releases=self.releases
            )
            if action is not None:
                self.actions.append((self.at / MINUTE, action.kind))
        return self

    def extend(self):
        extended = with_extension(self.idleness)
        assert extended is not None
        self.idleness = extended
        return self


IDLE_SCENARIOS = {
    "default rules mark and notify only": (
        IdleSimulation(IdleRules()).advance(24 * 60),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY)],
    ),
    "GPU use restarts the idle time": (
        IdleSimulation(IdleRules()).advance(4).advance(1 / 6, busy=0.01).advance(4.5).advance(1),
        [(4 + 1 / 6 + 5, IdleActionKind.BADGE)],
    ),
    "GPU use below 1 % counts as idle": (
        IdleSimulation(IdleRules()).advance(6, busy=0.009),
        [(5, IdleActionKind.BADGE)],
    ),
    "release rule": (
        IdleSimulation(RELEASING).advance(30),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY), (30, IdleActionKind.RELEASE)],
    ),
    "stop rule": (
        IdleSimulation(STOPPING, releases=False).advance(60),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY), (60, IdleActionKind.STOP)],
    ),
    "job is never released": (
        IdleSimulation(RELEASING, releases=False).advance(90),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY)],
    ),
    "extension by 30 minutes": (
        IdleSimulation(RELEASING).advance(25).extend().advance(35),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY), (60, IdleActionKind.RELEASE)],
    ),
    "busy on the CPU: one extension": (
        IdleSimulation(RELEASING).advance(60, cpu=1.0),
        [
            (5, IdleActionKind.BADGE),
            (20, IdleActionKind.NOTIFY),
            (30, IdleActionKind.EXTEND),
            (60, IdleActionKind.RELEASE),
        ],
    ),
    "never used GPU is released after 15 minutes": (
        IdleSimulation(RELEASING).advance(15, on_device=False),
        [(5, IdleActionKind.BADGE), (15, IdleActionKind.RELEASE)],
    ),
    "GPU used once": (
        IdleSimulation(RELEASING).advance(1).advance(28, on_device=False),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY)],
    ),
    "never used GPU without a release rule": (
        IdleSimulation(IdleRules()).advance(60, on_device=False),
        [(5, IdleActionKind.BADGE), (20, IdleActionKind.NOTIFY)],
    ),
    "unmeasured GPU is not idle": (
        IdleSimulation(RELEASING).advance(4).advance(600, busy=None).advance(0.5),
        [],
    ),
}


@pytest.mark.parametrize(("simulation", "expected"), IDLE_SCENARIOS.values(), ids=IDLE_SCENARIOS)
def test_idle_rules_trigger_each_action_on_time(simulation, expected):
    assert [(pytest.approx(at), kind) for at, kind in expected] == simulation.actions


def test_idle_extension_is_granted_twice_and_again_after_gpu_use():
    simulation = IdleSimulation(RELEASING).advance(6).extend().extend()

    assert with_extension(simulation.idleness) is None
    assert with_extension(simulation.advance(1, busy=0.5).idleness) is not None


def test_due_in_names_the_next_idle_action_and_its_time():
    simulation = IdleSimulation(RELEASING).advance(10)

    assert due_in(RELEASING, simulation.idleness) == (IdleActionKind.RELEASE, 20 * MINUTE)
    assert due_in(RELEASING, simulation.extend().idleness) == (IdleActionKind.RELEASE, 50 * MINUTE)
    assert due_in(IdleRules(), simulation.idleness) is None


def test_idle_action_states_the_idle_time_and_the_exceeded_limit():
    idleness = Idleness(0.0, idle_s=1795, used=True)
    measurement = Measurement(at=10, interval=10, busy=0.0, on_device=True)

    _, action = evaluate(RELEASING, idleness, measurement)

    assert action == IdleAction(IdleActionKind.RELEASE, idle_s=1805, limit_s=1800)


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
idle_rules = st.builds(
    IdleRules,
    badge_s=st.none() | st.integers(1, 900),
    notify_s=st.none() | st.integers(1, 3000),
    release_s=st.none() | st.integers(1, 4000),
    stop_s=st.none() | st.integers(1, 4000),
)


@given(rules=idle_rules, samples=measurements, releases=st.booleans())
def test_idle_action_is_never_taken_without_a_rule_or_before_its_idle_time(
    rules, samples, releases
):
    idleness, idle_since, extensions = Idleness(0.0), 0.0, 0
    for measurement in samples:
        if measurement.at > idleness.at and (measurement.busy or 0) >= 0.01:
            idle_since, extensions = measurement.at, 0
        idleness, action = evaluate(rules, idleness, measurement, releases=releases)
        if action is None:
            continue
        extensions += action.kind is IdleActionKind.EXTEND

        # No action comes before its time by the wall clock, even if measurements are late, repeated
        # or out of order.
        assert action.limit_s <= measurement.at - idle_since or action.never_used
        assert extensions <= 1
        if action.kind is IdleActionKind.RELEASE:
            assert releases
            assert rules.release_s is not None
        if action.kind is IdleActionKind.STOP:
            assert rules.stop_s is not None


@given(rules=idle_rules, samples=measurements)
def test_repeated_gpu_measurement_leaves_idleness_unchanged(rules, samples):
    idleness = Idleness(0.0)
    for measurement in samples:
        idleness, _ = evaluate(rules, idleness, measurement)

        assert evaluate(rules, idleness, measurement) == (idleness, None)
