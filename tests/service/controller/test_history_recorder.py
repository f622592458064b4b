"""Ledger records of workloads: their requests, and the end of workloads that no cycle saw."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inline_decisions import inline_scheduler
from runai.hub_service.clusters.simulated import MemoryStore, simulated_cluster
from runai.hub_service.clusters.workloads.change_log import ChangeLog
from runai.hub_service.controller import history_recorder
from runai.hub_service.controller.controller import Controller
from runai.hub_service.controller.history_recorder import (
    AllocationCache,
    HistoryRecorder,
    device_allocations,
)
from runai.hub_service.ledger import Ledger, PastRequest
from runai.hub_service.model.changes import Broadcast
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ElasticState, ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler import decide
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, MilliGpu

DEVICES = [Device(0, "SIM-0", "Simulated GPU", 1000, simulated=True)]
START = 1_700_000_000.0
SIGTERM_EXIT = 143
DEFAULT_PRIORITY = 50


class RecordingLedger(Ledger):
    """A real ledger that remembers the requests it was asked to store."""

    def __init__(self, database: Path, clock: Callable[[], float]) -> None:
        super().__init__(database, clock=clock)
        self.requests: list[tuple[str, str, int]] = []

    def record_request(self, workload: str, request: PastRequest) -> None:
        self.requests.append((workload, request.text, request.starts))
        super().record_request(workload, request)


class SimulatedService:
    """A simulated cluster, its controller and its recorder, with a clock that stands still."""

    def __init__(self, folder: Path) -> None:
        self.now = START
        self.cluster = simulated_cluster({"box": DEVICES}, clock=self.clock)
        self.ledger = RecordingLedger(folder / "ledger.sqlite", self.clock)
        self.controller = Controller(self.cluster, inline_scheduler())
        self.recorder = HistoryRecorder(
            self.cluster, self.ledger, self.controller.changes, self.clock
        )

    def clock(self) -> float:
        return self.now

    async def cycle(self) -> list[tuple[str, str, int]]:
        """Run a scheduling cycle and the recorder; return the requests written to the ledger."""
        await self.controller.cycle()
        await self.recorder.record_changes()
        requests, self.ledger.requests = self.ledger.requests, []
        return requests


@pytest.fixture
def service(tmp_path: Path) -> Iterator[SimulatedService]:
    service = SimulatedService(tmp_path)
    yield service
    service.ledger.close()


REQUEST_JSON = '{"workers":[{"gpus":1}],"preemptible":true,"priority":%d,"min_workers":1}'


async def test_history_recorder_stores_a_workloads_request_once_at_its_start(service):
    await service.cluster.put_project(ProjectSpec("vision"))
    spec = WorkloadSpec("vision", "exp", "ana", "job", ("train",), gpus=MilliGpu(1000))
    await service.cluster.submit([spec])

    requests_by_cycle = [await service.cycle() for _ in range(4)]

    # The first cycle decides about the workload before it starts it.
    assert [entry for cycle in requests_by_cycle for entry in cycle] == [
        ("vision/exp", REQUEST_JSON % DEFAULT_PRIORITY, 1)
    ]


async def test_request_of_a_job_that_started_and_ended_between_two_records_is_stored(service):
    await service.cluster.put_project(ProjectSpec("vision"))
    await service.cycle()
    spec = WorkloadSpec("vision", "short", "ana", "job", ("train",), gpus=MilliGpu(1000))
    await service.cluster.submit([spec])
    await service.controller.cycle()
    service.cluster.executor.complete("vision/short")

    assert await service.cycle() == [("vision/short", REQUEST_JSON % DEFAULT_PRIORITY, 1)]


async def test_request_of_an_elastic_job_follows_its_workers_and_that_it_saves(service):
    await service.cluster.put_project(ProjectSpec("vision"))
    spec = WorkloadSpec("vision", "grow", "ana", "job", ("train",), gpus=WHOLE_GPU, elastic=True)
    await service.cluster.submit([replace(spec, workers=4)])
    [(_, first, _)] = await service.cycle()

    await service.cluster.scale("vision/grow", workers=3, min_workers=None, by="ana")
    [(_, scaled, _)] = await service.cycle()
    row = service.cluster.index["vision/grow"]
    service.cluster.index["vision/grow"] = replace(row, elastic=ElasticState(saves=True))
    [(_, reported, _)] = await service.cycle()

    requests = [json.loads(text) for text in (first, scaled, reported)]
    assert [request["workers"][0]["count"] for request in requests] == [4, 3, 3]
    assert [request.get("saves", False) for request in requests] == [False, False, True]


async def test_ledger_counts_two_starts_of_paused_and_resumed_job(service):
    await service.cluster.put_project(ProjectSpec("vision"))
    low = WorkloadSpec("vision", "low", "ana", "job", ("train",), gpus=MilliGpu(1000), priority=25)
    await service.cluster.submit([low])
    await service.cycle()
    service.now += 10
    await service.cluster.submit([replace(low, name="high", priority=75)])
    await service.cycle()
    service.cluster.executor.complete("vision/low", SIGTERM_EXIT)
    await service.cycle()
    service.now += 10
    service.cluster.executor.complete("vision/high")
    await service.cycle()
    service.now += 10
    await service.cycle()

    past = {record.workload: record for record in await service.ledger.past(0.0)}

    assert (past["vision/low"].starts, past["vision/low"].submitted) == (2, START)
    assert past["vision/low"].request == REQUEST_JSON % 25
    assert past["vision/high"].request == REQUEST_JSON % 75


async def test_request_of_a_partly_exited_gang_is_stored_whole_in_the_ledger(service):
    await service.cluster.put_project(ProjectSpec("vision"))
    gang = WorkloadSpec(
        "vision", "gang", "ana", "job", ("train",), gpus=MilliGpu(500), workers=2, min_workers=2
    )
    await service.cluster.submit([gang])
    await service.cycle()
    service.now += 10
    await service.cluster.suspend("vision/gang", by="ana")
    service.cluster.executor.complete("vision/gang", SIGTERM_EXIT, worker=0)
    await service.cycle()
    service.now += 10
    await service.cycle()

    (past,) = await service.ledger.past(0.0)

    assert past.request == (
        '{"workers":[{"count":2,"gpus":0.5}],"preemptible":true,"priority":50,"min_workers":2}'
    )


async def test_history_recorder_closes_workload_deleted_just_before_a_crash(tmp_path):
    now = [START]

    def clock() -> float:
        return now[0]

    store, ledger = MemoryStore(), Ledger(tmp_path / "ledger.sqlite", clock=clock)
    cluster = simulated_cluster({"box": DEVICES}, clock=clock, store=store)
    await cluster.put_project(ProjectSpec("vision"))
    for name in ("deleted", "running"):
        spec = WorkloadSpec("vision", name, "ana", "job", ("train",), gpus=MilliGpu(500))
        await cluster.submit([spec])
    await cluster.apply(decide(await cluster.observe()))
    await HistoryRecorder(cluster, ledger, Broadcast(), clock).record_changes()
    now[0] += 60
    await cluster.delete("vision/deleted", by="ana")
    cluster.executor.complete("vision/deleted", SIGTERM_EXIT)
    ledger.close()

    ledger = Ledger(tmp_path / "ledger.sqlite", clock=clock)
    await HistoryRecorder(cluster, ledger, Broadcast(), clock).record_changes()

    assert ledger.workloads() == ["vision/running"]
    assert [event.kind for event in await ledger.events("vision/deleted")][-1] == "deleted"
    ledger.close()


async def test_history_recorder_closes_workload_that_ended_between_two_cycles(service):
    await service.cluster.put_project(ProjectSpec("vision"))
    await service.cycle()
    spec = WorkloadSpec("vision", "short", "ana", "job", ("train",), gpus=MilliGpu(1000))
    await service.cluster.submit([spec])
    await service.controller.cycle()
    # An agent's report does the same at any moment: the ledger then knows the workload.
    allocations = device_allocations(
        await service.cluster.workloads(), await service.cluster.devices()
    )
    service.ledger.record(service.now, 0.0, allocations)
    await service.cluster.delete("vision/short", by="ana")
    service.cluster.executor.complete("vision/short", SIGTERM_EXIT)
    assert service.ledger.workloads() == ["vision/short"]

    await service.cycle()

    assert service.ledger.workloads() == []
    assert [e.kind for e in await service.ledger.events("vision/short")] == ["deleted"]


@pytest.mark.parametrize("is_read_anew", [False, True], ids=["changes", "all read anew"])
async def test_history_recorder_writes_each_state_change_and_end_once(service, is_read_anew):
    await service.cluster.put_project(ProjectSpec("vision"))
    specs = {
        name: WorkloadSpec("vision", name, "ana", "job", ("train",), gpus=MilliGpu(1000))
        for name in ("a-runs", "ended", "gone", "queued-again", "suspended-again", "brief")
    }
    await service.cluster.submit([spec for name, spec in specs.items() if name != "brief"])
    await service.cycle()
    await service.cluster.suspend("vision/ended", by="ana")
    for name in ("gone", "queued-again", "suspended-again"):
        await service.cluster.delete(f"vision/{name}", by="ana")
    service.now += 10
    again = [replace(specs[name]) for name in ("queued-again", "suspended-again", "brief")]
    await service.cluster.submit(again)
    await service.cluster.suspend("vision/suspended-again", by="ana")
    await service.cluster.delete("vision/brief", by="ana")
    if is_read_anew:
        service.cluster.index._log = ChangeLog()

    for _ in range(2):
        await service.recorder.record_changes()

    events = {name: await service.ledger.events(f"vision/{name}") for name in specs}
    assert {name: [event.kind for event in found] for name, found in events.items()} == {
        "a-runs": [],
        "ended": ["suspended"],
        "gone": ["deleted"],
        "queued-again": [],
        "suspended-again": ["suspended"],
        "brief": [],
    }


async def test_history_recorder_stores_the_request_of_a_job_submitted_anew(service):
    await service.cluster.put_project(ProjectSpec("vision"))
    spec = WorkloadSpec("vision", "exp", "ana", "job", ("train",), gpus=MilliGpu(1000))
    requests = []
    for _ in range(2):
        await service.cluster.submit([replace(spec)])
        await service.controller.cycle()
        requests += await service.cycle()
        service.cluster.executor.complete("vision/exp")
        await service.cluster.delete("vision/exp", by="ana")
        service.now += 10

    assert requests == 2 * [("vision/exp", REQUEST_JSON % DEFAULT_PRIORITY, 1)]


async def test_allocation_cache_is_rebuilt_only_when_allocations_change(service):
    await service.cluster.put_project(ProjectSpec("vision"))
    cache = AllocationCache(service.cluster)
    assert await cache.now() == []
    for name in ("first", "waits"):
        spec = WorkloadSpec("vision", name, "ana", "job", ("train",), gpus=MilliGpu(1000))
        await service.cluster.submit([spec])
        await service.controller.cycle()
    allocations = await cache.now()
    devices = await service.cluster.devices()
    assert list(allocations) == device_allocations(await service.cluster.workloads(), devices)

    await service.cluster.submit([WorkloadSpec("vision", "late", "ana", "job", ("train",))])
    assert await cache.now() is allocations

    service.cluster.executor.complete("vision/first", 0)
    assert [allocation.workload for allocation in await cache.now()] == [
        allocation.workload for allocation in allocations if allocation.workload != "vision/first"
    ]


async def test_history_recorder_skips_jobs_that_only_move_up_in_the_queue(service, monkeypatch):
    await service.cluster.put_project(ProjectSpec("vision"))
    for name in ("a-runs", "b-next", "c-last"):
        spec = WorkloadSpec("vision", name, "ana", "job", ("train",), gpus=MilliGpu(1000))
        await service.cluster.submit([spec])
    await service.cycle()
    await service.cycle()
    encoded_names: list[str] = []
    request_of = history_recorder.request_of  # type: ignore[attr-defined]

    def record_call(workload):
        encoded_names.append(workload.name)
        return request_of(workload)

    monkeypatch.setattr(history_recorder, "request_of", record_call)

    service.cluster.executor.complete("vision/a-runs")
    await service.cycle()
    last = await service.cluster.workload("vision/c-last")

    assert last.position == 1
    assert set(encoded_names) == {"vision/b-next"}
