"""Shared devices end in the same state whether or not Events and evictions are accepted.

Events are refused while a namespace terminates, by a quota, or by an overloaded API server.
"""

from __future__ import annotations

import pytest

from clusters.kubernetes.gpu_sharing import (
    devices_of,
    events,
    fraction_pod,
    give_device_to_foreign_pod,
)
from control_plane.faults import FaultyServer
from control_plane.scheduling import Scheduler
from runai.hub_service.controller.controller import Cycle
from runai.hub_service.scheduler.model.snapshot import WorkerState

pytestmark = pytest.mark.kubernetes

ALWAYS = 1_000_000


def pod_names(work) -> list[str]:
    return [found["metadata"]["name"] for found in work.pods()]


def test_gpu_sharing_pod_with_a_refused_eviction_gets_one_event(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig) as scheduler:
        work.create(fraction_pod("one", "0.5"))
        until(lambda: devices_of(work), what="the pod is bound")
        # Like a disruption budget that is used up.
        server.refuse("POST", "/pods/one/eviction", status=429, times=3)
        give_device_to_foreign_pod(work, plugin, scheduler)
        until(lambda: pod_names(work) == ["theirs"], what="the sharing pod is gone")
        (message,) = until(lambda: events(work, "DeviceLost"), what="an Event is sent")

    assert server.are_over
    assert f"was given to {work.name}/theirs" in message
    assert events(work, "DeviceLost") == [message]


def test_shared_device_that_a_node_rejected_is_reserved_for_no_waiting_pod(
    two_gpus, kubeconfig, plugin, until
):
    work = two_gpus.namespace
    plugin.pods_to_reject = 1  # the kubelet rejects the next pod
    two_gpus.node("gpu-1", gpus=1)
    plugin.nodes["gpu-1"] = ["GPU-c"]
    for name in ("one", "two"):
        work.create(fraction_pod(name, "0.5"))

    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig) as scheduler:
        server.refuse("POST", "/events", status=403, times=ALWAYS)
        until(lambda: len(devices_of(work)) == 2, what="both are bound")

    # Both pods came together: while the first device was reserved, it was so for both.
    assert {len(reserved_workers(cycle)) for cycle in scheduler.cycles} == {0, 2}
    assert len(set(devices_of(work).values())) == len(plugin.reservations()) == 1


def reserved_workers(cycle: Cycle) -> list[str]:
    """Return the names of the workers with a reserved device."""
    workers = (worker for workload in cycle.snapshot.workloads for worker in workload.workers)
    return [worker.name for worker in workers if worker.state is WorkerState.RESERVED]
