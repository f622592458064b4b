"""Counting before searching: what it says no to, a search could not have found (R2, R5, E1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

import strategies
from runai.hub_service.scheduler import Decision, Snapshot, Wait, WorkerState, decide
from runai.hub_service.scheduler.bounds import Bounds


def with_claims_for_one_worker(world: Snapshot) -> Snapshot:
    """Let whoever waits ask for one worker: a gang has many sets of nodes to choose from."""
    return replace(
        world,
        workloads=tuple(
            replace(w, workers=w.workers[:1], min_workers=None)
            if all(worker.state is WorkerState.PENDING for worker in w.workers)
            else w
            for w in world.workloads
        ),
    )


def done(world: Snapshot) -> list[Decision]:
    return [d for d in decide(world).decisions if not isinstance(d, Wait)]


@given(strategies.snapshots().map(with_claims_for_one_worker))
def test_nothing_is_lost_by_counting_first(world: Snapshot) -> None:
    counted = done(world)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bounds, "could_suffice", lambda *_arguments: True)
        assert done(world) == counted
