"""Bursts of hundreds of GPU fractions for few devices: no device is overfilled.

Each shared device costs a reservation: none is opened for a request that fits on another one.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders import job, project, snapshot
from runai.hub_service.scheduler import Plan, Start, Wait, decide

PARTS = [0.1, 0.25, 0.3, 0.5, 0.7, 0.999]
BURST = 200
WHOLE = 1000


def filled(plan: Plan) -> Counter[tuple[str, int]]:
    """Sum the milli-GPU that a plan allocates on each device."""
    given: Counter[tuple[str, int]] = Counter()
    for start in plan.decisions:
        if isinstance(start, Start):
            given.update({(start.node, share.device): share.gpus for share in start.devices})
    return given


def burst(nodes: str, parts: list[float]) -> Plan:
    """Return the plan for fractions that have all just been submitted."""
    jobs = [job(f"part-{number}", part) for number, part in enumerate(parts)]
    return decide(snapshot(nodes, [project("a", 100)], jobs))


@given(
    st.sampled_from(["1x4", "2x2", "1x8+2x1"]),
    st.lists(st.sampled_from(PARTS), min_size=BURST, max_size=BURST),
)
@example("1x8+2x1", [0.7, 0.3] * (BURST // 2))
@example("2x2", [0.5, 0.1] * (BURST // 2))
def test_burst_overfills_no_device_and_leaves_no_room_for_a_waiting_job(
    nodes: str, parts: list[float]
) -> None:
    plan = burst(nodes, parts)

    given = filled(plan)
    assert max(given.values()) <= WHOLE
    waiting = {d.workload for d in plan.decisions if isinstance(d, Wait)}
    assert len(waiting) + sum(isinstance(d, Start) for d in plan.decisions) == BURST
    least = min(round(parts[int(name.partition("-")[2])] * WHOLE) for name in waiting)
    assert WHOLE - min(given.values()) < least


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=12))
def test_no_device_is_shared_anew_while_another_has_room(parts: list[float]) -> None:
    given = filled(burst("2x8", parts))

    assert max(given.values()) <= WHOLE
    for one, other in itertools.combinations(given.values(), 2):
        assert one + other > WHOLE, "they would have fitted on one"


@pytest.mark.parametrize(
    ("part", "on_each"),
    [pytest.param(p, n, id=f"{p}") for p, n in ((0.5, 2), (0.333, 3), (0.25, 4), (0.1, 10))],
)
def test_equal_parts_need_as_few_devices_as_there_can_be(part: float, on_each: int) -> None:
    given = filled(burst("13x8", [part] * BURST))

    assert max(given.values()) <= WHOLE
    assert len(given) == -(-BURST // on_each)
