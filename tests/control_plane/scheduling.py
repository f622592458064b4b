"""Our scheduler in a thread, against a real API server, with the chart's own rights.

Stopping it is as abrupt as a crash: its pending work stays undone. For tests and benchmarks.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from control_plane.sockets import all_closed
from inline_decisions import inline_scheduler
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.client.leader_election import LeaderElection
from runai.hub_service.clusters.kubernetes.informers.node_pool import NodePool
from runai.hub_service.clusters.kubernetes.kubernetes_cluster import KubernetesCluster
from runai.hub_service.controller.controller import Controller, Cycle
from runai.hub_service.scheduler.model.snapshot import Policy

STOPPED_WITHIN_S = 90
LEASE_LASTS_S = 6

T = TypeVar("T")


class Scheduler:
    """A controller over a `KubernetesCluster`, for as long as a `with` lasts."""

    def __init__(
        self,
        kubeconfig: Path,
        policy: Policy | None = None,
        *,
        candidate: str = "",
        pool: str = "",
        clock: Callable[[], float] = time.time,
        namespace: str = "default",
    ) -> None:
        """Use the rights of a kubeconfig; the thread starts with `with`.

        A `candidate` schedules only while it holds the Lease, and dies without releasing it. A
        `pool` is the part of the cluster that it sees, in the syntax of the service's setting.
        Submitted workloads are created in `namespace`.
        """
        self._candidate = candidate
        self._clock = clock
        self._namespace = namespace
        self._pool = NodePool.parse(pool)
        self._kubeconfig = str(kubeconfig)
        self._policy = policy
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._loop = asyncio.new_event_loop()
        self._running: asyncio.Task[None] | None = None
        self._begun = threading.Event()
        self.cycles: list[Cycle] = []
        self.cluster: KubernetesCluster
        self.failed: BaseException | None = None

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        assert self._begun.wait(STOPPED_WITHIN_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop it at once; fail the test if the scheduler failed."""
        if self._running is not None:
            self._loop.call_soon_threadsafe(self._running.cancel)
        self._thread.join(STOPPED_WITHIN_S)
        assert not self._thread.is_alive()
        if self.failed is not None and error is None:
            raise self.failed

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the cluster in the scheduler's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(STOPPED_WITHIN_S)

    @property
    def refused(self) -> list[str]:
        """Return the refused requests so far, in the words of the API server."""
        return [refusal.text for cycle in self.cycles for refusal in cycle.refused]

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._running = self._loop.create_task(self._schedule())
            try:
                self._loop.run_until_complete(self._running)
            except asyncio.CancelledError:
                pass
            except BaseException as failed:  # noqa: BLE001  handed over to the test
                self.failed = failed
            finally:
                self._begun.set()
                self._loop.run_until_complete(all_closed())

    async def _schedule(self) -> None:
        async with await Api.connect(self._kubeconfig) as api:
            if not self._candidate:
                await self._work(api)
            self._begun.set()  # it may never come to have a cluster
            candidate = LeaderElection(
                api, namespace="runai", identity=self._candidate, lasts_s=LEASE_LASTS_S
            )
            await candidate.lead(lambda: self._work(api))

    async def _work(self, api: Api) -> None:
        self.cluster = KubernetesCluster(
            api,
            pool=self._pool,
            clock=self._clock,
            namespace=self._namespace,
            api_url="http://runai/services/runai/",
        )
        self._begun.set()
        controller = Controller(
            self.cluster, inline_scheduler(), policy=self._policy, on_cycle=self.cycles.append
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.cluster.run())
            tasks.create_task(controller.run())
