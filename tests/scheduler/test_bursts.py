"""Bursts of hundreds of GPU fractions for few devices: no device is overfilled.

Each shared device costs a reservation: none is opened for a request that fits on another one.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders import job, project, snapshot
from runai.hub_service.scheduler import Plan, Start, Wait, decide

GPU_FRACTIONS = [0.1, 0.25, 0.3, 0.5, 0.7, 0.999]
BURST_SIZE = 200
MILLI_PER_GPU = 1000


def milli_by_device(plan: Plan) -> Counter[tuple[str, int]]:
    """Sum the milli-GPU that a plan allocates on each device."""
    allocated: Counter[tuple[str, int]] = Counter()
    for start in plan.decisions:
        if isinstance(start, Start):
            allocated.update({(start.node, share.device): share.gpus for share in start.devices})
    return allocated


def plan_burst(nodes: str, fractions: list[float]) -> Plan:
    """Plan jobs of these GPU fractions that have all just been submitted."""
    jobs = [job(f"part-{number}", fraction) for number, fraction in enumerate(fractions)]
    return decide(snapshot(nodes, [project("a", 100)], jobs))


@given(
    st.sampled_from(["1x4", "2x2", "1x8+2x1"]),
    st.lists(st.sampled_from(GPU_FRACTIONS), min_size=BURST_SIZE, max_size=BURST_SIZE),
)
@example("1x8+2x1", [0.7, 0.3] * (BURST_SIZE // 2))
@example("2x2", [0.5, 0.1] * (BURST_SIZE // 2))
def test_burst_of_fractional_jobs_overfills_no_device_and_leaves_no_usable_room(
    nodes: str, fractions: list[float]
) -> None:
    plan = plan_burst(nodes, fractions)

    allocated = milli_by_device(plan)
    assert max(allocated.values()) <= MILLI_PER_GPU
    waiting = {d.workload for d in plan.decisions if isinstance(d, Wait)}
    started_count = sum(isinstance(d, Start) for d in plan.decisions)
    assert len(waiting) + started_count == BURST_SIZE
    waiting_fractions = [fractions[int(name.partition("-")[2])] for name in waiting]
    smallest_request = round(min(waiting_fractions) * MILLI_PER_GPU)
    assert MILLI_PER_GPU - min(allocated.values()) < smallest_request


@given(st.lists(st.sampled_from(GPU_FRACTIONS), min_size=1, max_size=12))
def test_burst_of_fractional_jobs_opens_no_device_while_a_shared_device_has_room(
    fractions: list[float],
) -> None:
    allocated = milli_by_device(plan_burst("2x8", fractions))

    assert max(allocated.values()) <= MILLI_PER_GPU
    for first, second in itertools.combinations(allocated.values(), 2):
        assert first + second > MILLI_PER_GPU, "both devices' jobs would have fitted on one"


@pytest.mark.parametrize(
    ("fraction", "jobs_per_device"),
    [pytest.param(f, n, id=f"{f}") for f, n in ((0.5, 2), (0.333, 3), (0.25, 4), (0.1, 10))],
)
def test_burst_of_equal_fractional_jobs_uses_the_fewest_possible_devices(
    fraction: float, jobs_per_device: int
) -> None:
    allocated = milli_by_device(plan_burst("13x8", [fraction] * BURST_SIZE))

    assert max(allocated.values()) <= MILLI_PER_GPU
    assert len(allocated) == math.ceil(BURST_SIZE / jobs_per_device)
