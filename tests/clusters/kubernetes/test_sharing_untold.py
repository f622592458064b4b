"""What becomes of shared devices does not depend on whether anybody can be told of it.

Events are refused while a namespace ends, by a quota, or by a server that has too much to do.
"""

from __future__ import annotations

import pytest

from clusters.kubernetes.sharing_world import events, give_away, half, visible
from control_plane.faults import FaultyServer
from control_plane.scheduling import Scheduler
from runai.hub_service.controller.loop import Cycle
from runai.hub_service.scheduler.model.snapshot import WorkerState

pytestmark = pytest.mark.kubernetes

ALWAYS = 1_000_000


def names(work) -> list[str]:
    return [found["metadata"]["name"] for found in work.pods()]


def test_whoever_cannot_be_evicted_yet_is_told_once(ready, rights, plugin, until):
    work = ready.namespace
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        work.create(half("one"))
        until(lambda: visible(work), what="it is bound")
        # As a disruption budget does that is used up.
        server.refuse("POST", "/pods/one/eviction", status=429, times=3)
        give_away(work, plugin, scheduler)
        until(lambda: names(work) == ["theirs"], what="it is gone")
        (told,) = until(lambda: events(work, "DeviceLost"), what="it is told")

    assert server.are_over
    assert f"was given to {work.name}/theirs" in told
    assert events(work, "DeviceLost") == [told]


def test_a_device_that_is_refused_is_kept_for_nobody_who_waited_for_it(
    ready, rights, plugin, until
):
    work = ready.namespace
    plugin.turns_away = 1
    ready.node("gpu-1", gpus=1)
    plugin.nodes["gpu-1"] = ["GPU-c"]
    for name in ("one", "two"):
        work.create(half(name))

    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        server.refuse("POST", "/events", status=403, times=ALWAYS)
        until(lambda: len(visible(work)) == 2, what="both are bound")

    # They came together: for as long as the first device was kept for one, it was for both.
    assert {len(reserved(cycle)) for cycle in scheduler.cycles} == {0, 2}
    assert len(set(visible(work).values())) == len(plugin.reservations()) == 1


def reserved(cycle: Cycle) -> list[str]:
    """Return for whom devices were kept."""
    workers = (worker for workload in cycle.snapshot.workloads for worker in workload.workers)
    return [worker.name for worker in workers if worker.state is WorkerState.RESERVED]
