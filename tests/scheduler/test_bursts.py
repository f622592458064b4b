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


def milli_by_device(plan: Plan) -> Counter[tuple[str, int]]:
    """Sum the milli-GPU that a plan allocates on each device."""
    allocated: Counter[tuple[str, int]] = Counter()
    for start in plan.decisions:
        if isinstance(start, Start):
            allocated.update({(start.node, share.device): share.gpus for share in start.devices})
    return allocated


def burst_plan(nodes: str, parts: list[float]) -> Plan:
    """Return the plan for fractions that have all just been submitted."""
    jobs = [job(f"part-{number}", part) for number, part in enumerate(parts)]
    return decide(snapshot(nodes, [project("a", 100)], jobs))


@given(
    st.sampled_from(["1x4", "2x2", "1x8+2x1"]),
    st.lists(st.sampled_from(PARTS), min_size=BURST, max_size=BURST),
)
@example("1x8+2x1", [0.7, 0.3] * (BURST // 2))
@example("2x2", [0.5, 0.1] * (BURST // 2))
def test_burst_of_fractional_jobs_overfills_no_device_and_leaves_no_usable_room(
    nodes: str, parts: list[float]
) -> None:
    plan = burst_plan(nodes, parts)

    allocated = milli_by_device(plan)
    assert max(allocated.values()) <= WHOLE
    waiting = {d.workload for d in plan.decisions if isinstance(d, Wait)}
    assert len(waiting) + sum(isinstance(d, Start) for d in plan.decisions) == BURST
    smallest_request = min(round(parts[int(name.partition("-")[2])] * WHOLE) for name in waiting)
    assert WHOLE - min(allocated.values()) < smallest_request


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=12))
def test_burst_of_fractional_jobs_opens_no_device_while_a_shared_device_has_room(
    parts: list[float],
) -> None:
    allocated = milli_by_device(burst_plan("2x8", parts))

    assert max(allocated.values()) <= WHOLE
    for first, second in itertools.combinations(allocated.values(), 2):
        assert first + second > WHOLE, "they would have fitted on one"


@pytest.mark.parametrize(
    ("part", "per_device"),
    [pytest.param(p, n, id=f"{p}") for p, n in ((0.5, 2), (0.333, 3), (0.25, 4), (0.1, 10))],
)
def test_burst_of_equal_fractional_jobs_uses_the_fewest_possible_devices(
    part: float, per_device: int
) -> None:
    allocated = milli_by_device(burst_plan("13x8", [part] * BURST))

    assert max(allocated.values()) <= WHOLE
    assert len(allocated) == -(-BURST // per_device)
