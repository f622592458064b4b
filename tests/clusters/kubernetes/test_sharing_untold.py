"""Shared devices end in the same state whether or not Events and evictions are accepted.

Events are refused while a namespace terminates, by a quota, or by an overloaded API server.
"""

from __future__ import annotations

import pytest

from clusters.kubernetes.sharing_world import events, give_device_to_foreign_pod, half, visible
from control_plane.faults import FaultyServer
from control_plane.scheduling import Scheduler
from runai.hub_service.controller.controller import Cycle
from runai.hub_service.scheduler.model.snapshot import WorkerState

pytestmark = pytest.mark.kubernetes

ALWAYS = 1_000_000


def names(work) -> list[str]:
    return [found["metadata"]["name"] for found in work.pods()]


def test_gpu_sharing_pod_with_a_refused_eviction_gets_one_event(ready, rights, plugin, until):
    work = ready.namespace
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        work.create(half("one"))
        until(lambda: visible(work), what="it is bound")
        # Like a disruption budget that is used up.
        server.refuse("POST", "/pods/one/eviction", status=429, times=3)
        give_device_to_foreign_pod(work, plugin, scheduler)
        until(lambda: names(work) == ["theirs"], what="it is gone")
        (message,) = until(lambda: events(work, "DeviceLost"), what="it is told")

    assert server.are_over
    assert f"was given to {work.name}/theirs" in message
    assert events(work, "DeviceLost") == [message]


def test_shared_device_that_a_node_rejected_is_reserved_for_no_waiting_pod(
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

    # Both pods came together: while the first device was reserved, it was so for both.
    assert {len(reserved(cycle)) for cycle in scheduler.cycles} == {0, 2}
    assert len(set(visible(work).values())) == len(plugin.reservations()) == 1


def reserved(cycle: Cycle) -> list[str]:
    """Return the names of the workers with a reserved device."""
    workers = (worker for workload in cycle.snapshot.workloads for worker in workload.workers)
    return [worker.name for worker in workers if worker.state is WorkerState.RESERVED]
