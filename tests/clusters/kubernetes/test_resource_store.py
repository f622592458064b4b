"""Rows in `GpuJob` resources of a real API server: the next service has what was stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from control_plane.faults import FaultyServer
from pods_lab import give_rights
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.gpu_jobs.gpu_job import path_of
from runai.hub_service.clusters.kubernetes.gpu_jobs.resource_store import (
    ReplacedLeader,
    ResourceStore,
)
from runai.hub_service.clusters.simulated import SimulatedExecutor
from runai.hub_service.clusters.workloads.stored_cluster import StoredCluster
from runai.hub_service.model import arrays
from runai.hub_service.model.records import (
    ProjectSpec,
    StateReason,
    WorkerRecord,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare
from runai.hub_service.wire.errors import InvalidRequest, Unavailable
from waiting import eventually_async

pytestmark = pytest.mark.kubernetes

OPEN = Callable[..., contextlib.AbstractAsyncContextManager[ResourceStore]]


def job(name: str = "exp", *, project: str = "vision", **fields: Any) -> WorkloadSpec:
    return WorkloadSpec(project, name, "ana", "job", ("train",), gpus=MilliGpu(1000), **fields)


def queued(spec: WorkloadSpec, **fields: Any) -> WorkloadRecord:
    workers = tuple(
        WorkerRecord(f"{spec.id}-{index}", index, "pending") for index in range(spec.workers)
    )
    return WorkloadRecord(spec, WorkloadState.QUEUED, 100.0, workers, uid="u1", **fields)


def running(row: WorkloadRecord) -> WorkloadRecord:
    share = (DeviceShare(2, MilliGpu(1000)),)
    workers = tuple(
        replace(worker, state="running", node="gpu-0", devices=share, started=101.5, attempt=1)
        for worker in row.workers
    )
    return replace(row, state=WorkloadState.RUNNING, workers=workers, attempts=1, started=101.5)


RIGHTS = {
    ("jupyter-runai.dev", "gpujobs"): ("create", "delete", "list"),
    ("jupyter-runai.dev", "gpujobs/status"): ("update",),
}


@pytest.fixture
def server(plane: Any, lab: Any) -> Iterator[FaultyServer]:
    """Return the API server, with just these rights, behind a proxy that can fail."""
    with FaultyServer(give_rights(plane, lab.namespace.name, RIGHTS)) as faulty:
        yield faulty


@pytest.fixture
def open_store(server: Any, lab: Any) -> OPEN:
    """Return a function that opens a store as a starting service does."""

    @contextlib.asynccontextmanager
    async def open_(**options: Any) -> AsyncGenerator[ResourceStore]:
        async with await Api.connect(str(server.kubeconfig)) as api:
            store = await ResourceStore.open(api, lab.namespace.name, **options)
            try:
                yield store
            finally:
                await store.close()

    return open_


@pytest.fixture
def resources(plane: Any, lab: Any) -> Callable[[], list[Any]]:
    return lambda: plane.request("GET", path_of(lab.namespace.name))["items"]


ARRAY = job("sweep", array=5)
ROWS = {
    "queued job": [queued(job())],
    "running gang": [running(queued(job(workers=3, min_workers=3)))],
    "failed job": [
        replace(
            queued(job()),
            state=WorkloadState.FAILED,
            finished=200.25,
            exit_code=7,
            reason=StateReason("exit_code", "ended with exit code 7"),
        )
    ],
    "array with an element that runs": [
        queued(ARRAY, left=((0, 2), (3, 5))),
        running(queued(arrays.element(ARRAY, 2))),
    ],
    "elements whose array has no row": [running(queued(arrays.element(ARRAY, 4)))],
    "job with variables and source": [queued(job(env={"A": "ü"}, source="print(1)\n" * 1000))],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
async def test_next_service_reads_the_rows_that_were_stored(open_store: OPEN, rows: Any) -> None:
    async with open_store() as store:
        if rows[0].spec.array_index is not None:
            store.save([queued(ARRAY, left=((0, 5),))])
        store.save(rows, deleted=[ARRAY.id] if rows[0].spec.array_index is not None else [])
        await store.stored([row.id for row in rows])

    async with open_store() as later:
        assert list(later.rows()) == rows


async def test_changes_during_a_write_go_with_the_next_one(
    open_store: OPEN, server: FaultyServer
) -> None:
    row = queued(job())
    async with open_store() as store:
        store.save([row])
        await store.stored([row.id])
        release = server.hold("PUT", "/gpujobs/vision-exp/status")
        server.requests.clear()
        for seconds in range(100):
            store.save([replace(row, ran_s=float(seconds))])
            await asyncio.sleep(0)
        release()
        await store.stored([row.id])
        assert [method for method, _ in server.requests] == ["PUT", "PUT"]

    async with open_store() as later:
        assert [found.ran_s for found in later.rows()] == [99.0]


LOST = {"create": ("POST", "/gpujobs"), "status": ("PUT", "/status")}


@pytest.mark.parametrize("request_", LOST.values(), ids=LOST)
async def test_lost_answer_leads_to_one_resource_with_the_row(
    open_store: OPEN, server: FaultyServer, resources: Any, request_: tuple[str, str]
) -> None:
    server.lose_answer(*request_)
    async with open_store() as store:
        store.save([queued(job())])
        await store.stored(["vision/exp"])

    assert [found["metadata"]["name"] for found in resources()] == ["vision-exp"]
    async with open_store() as later:
        assert list(later.rows()) == [queued(job())]


async def test_two_workloads_with_one_usual_name_have_two_resources(
    open_store: OPEN, resources: Any
) -> None:
    rows = [
        queued(job("b-c", project="a")),
        replace(queued(job("c", project="a-b")), submitted=101.0),
    ]
    async with open_store() as store:
        store.save(rows)
        await store.stored([row.id for row in rows])
    names = {found["metadata"]["name"] for found in resources()}

    assert len(names) == 2
    assert "a-b-c" in names
    async with open_store() as later:
        assert list(later.rows()) == rows


async def test_deleted_row_has_no_resource(open_store: OPEN, resources: Any) -> None:
    async with open_store() as store:
        store.save([queued(job())])
        await store.stored(["vision/exp"])
        store.save(deleted=["vision/exp"])
        await eventually_async(lambda: not resources())
        store.save([queued(job())])  # a later workload of the same name
        await store.stored(["vision/exp"])

    assert len(resources()) == 1


async def test_resource_of_an_incomplete_submission_is_deleted_at_the_next_start(
    open_store: OPEN, server: FaultyServer, resources: Any
) -> None:
    server.refuse("PUT", "/status", status=503, times=1000)
    async with open_store(patience_s=0.2) as store:
        store.save([queued(job())])
        with pytest.raises(Unavailable):
            await store.stored(["vision/exp"])
    assert len(resources()) == 1

    async with open_store() as later:
        assert list(later.rows()) == []
        await eventually_async(lambda: not resources())


@pytest.fixture
async def cluster(
    open_store: OPEN, request: pytest.FixtureRequest
) -> AsyncIterator[StoredCluster[SimulatedExecutor]]:
    """Return a cluster on a store; a parameter is the seconds that its callers wait."""
    async with open_store(patience_s=getattr(request, "param", 60)) as store:
        cluster = StoredCluster(store, {}, lambda c: SimulatedExecutor(c, lambda: 100.0))
        await cluster.put_project(ProjectSpec("vision", quota=MilliGpu(1000)))
        yield cluster


@pytest.mark.parametrize("cluster", [0.5], indirect=True)
async def test_submission_that_is_not_stored_in_time_leaves_neither_row_nor_resource(
    cluster: StoredCluster[SimulatedExecutor], server: FaultyServer, resources: Any
) -> None:
    release = server.hold("POST", "/gpujobs")

    with pytest.raises(Unavailable, match=r"did not store it within 0\.5 s"):
        await cluster.submit([job()])

    assert list(await cluster.workloads()) == []
    server.requests.clear()
    release()
    await eventually_async(lambda: ("DELETE", "/gpujobs/vision-exp") in _short(server))
    await eventually_async(lambda: not resources())


@pytest.mark.parametrize("cluster", [0.5], indirect=True)
async def test_same_submission_again_takes_the_place_of_the_late_one(
    cluster: StoredCluster[SimulatedExecutor], server: FaultyServer, resources: Any
) -> None:
    release = server.hold("POST", "/gpujobs")
    with pytest.raises(Unavailable):
        await cluster.submit([job(key="k")])
    release()
    cluster._store._patience_s = 60  # type: ignore[attr-defined]  # of a busy machine

    [record] = await cluster.submit([job(key="k")])

    await eventually_async(lambda: [_row_uid(found) for found in resources()] == [record.uid])


async def test_refused_submission_says_why_and_leaves_no_row(
    cluster: StoredCluster[SimulatedExecutor],
) -> None:
    with pytest.raises(InvalidRequest, match="Kubernetes refuses it"):
        await cluster.submit([job("x" * 64)])  # a label has 63 letters at most

    assert list(await cluster.workloads()) == []


async def test_failed_change_of_a_stored_row_is_tried_again(
    open_store: OPEN, server: FaultyServer
) -> None:
    async with open_store() as store:
        store.save([queued(job())])
        await store.stored(["vision/exp"])
        server.refuse("PUT", "/status", status=500, times=2)
        store.save([running(queued(job()))])
        await eventually_async(lambda: "on purpose" in store.unhealthy_reason())
        await store.stored(["vision/exp"])
        assert store.unhealthy_reason() == ""


async def test_replaced_leader_stops_at_its_first_write_over_a_later_ones(open_store: OPEN) -> None:
    row = queued(job())
    async with open_store(writer=1) as old:
        old.save([row])
        await old.stored([row.id])
        async with open_store(writer=2) as new:
            new.save([running(row)])
            await new.stored([row.id])
            old.save([replace(row, ran_s=5.0)])
            with pytest.raises(ReplacedLeader, match="vision/exp was written by leader 2"):
                await asyncio.wait_for(old.run(), 30)
            assert list(new.rows()) == [running(row)]


async def test_late_write_of_a_dead_leader_is_overwritten(open_store: OPEN) -> None:
    row = queued(job())
    async with open_store(writer=1) as old:
        old.save([row])
        await old.stored([row.id])
        async with open_store(writer=2) as new:
            old.save([replace(row, ran_s=5.0)])
            await old.stored([row.id])
            new.save([running(row)])
            await new.stored([row.id])

    async with open_store() as later:
        assert list(later.rows()) == [running(row)]


async def test_deletion_by_kubectl_is_reported(open_store: OPEN, plane: Any, lab: Any) -> None:
    removed: list[str] = []
    async with open_store(on_removal=removed.append) as store:
        store.save([queued(job())])
        await store.stored(["vision/exp"])
        plane.kubectl("delete", "gpujob", "vision-exp", "-n", lab.namespace.name)
        store.save([running(queued(job()))])
        await store.stored(["vision/exp"])
        store.save(deleted=["vision/exp"])  # by the cluster, after the report

    assert removed == ["vision/exp"]
    assert list(store.rows()) == []


async def test_gpujob_has_columns_and_conditions_for_people(
    open_store: OPEN, plane: Any, lab: Any
) -> None:
    row = running(queued(job(workers=2, min_workers=2)))
    async with open_store() as store:
        store.save([row])
        await store.stored([row.id])
        table = plane.kubectl("get", "gpujobs", "-n", lab.namespace.name)
        store.save([replace(row, state=WorkloadState.SUCCEEDED, finished=150.0, workers=())])
        await store.stored([row.id])
    waited = plane.kubectl(
        *("wait", "--for=condition=Complete", "gpujob/vision-exp", "--timeout=30s"),
        *("-n", lab.namespace.name),
    )

    header, line = table.splitlines()
    assert header.split() == ["NAME", "PROJECT", "STATE", "GPUS", "DONE", "AGE"]
    assert line.split()[:5] == ["vision-exp", "vision", "running", "2", "0/1"]
    assert "condition met" in waited


async def test_unreadable_resource_is_named(open_store: OPEN, plane: Any, lab: Any) -> None:
    path = path_of(lab.namespace.name)
    body = {
        "apiVersion": "jupyter-runai.dev/v1alpha1",
        "kind": "GpuJob",
        "metadata": {"name": "odd"},
        "spec": {"project": "vision", "name": "odd", "user": "ana", "kind": "job", "command": []},
    }
    plane.request("POST", path, body)
    later = {"status": {"format": 99}}
    merge = "application/merge-patch+json"
    plane.request("PATCH", f"{path}/odd/status", later, content_type=merge)

    with pytest.raises(Unavailable, match="a later version wrote odd"):
        async with open_store():
            pass


def _short(server: FaultyServer) -> list[tuple[str, str]]:
    """Return the requests, each with the last two parts of its path."""
    return [(method, "/" + "/".join(path.split("/")[-2:])) for method, path in server.requests]


def _row_uid(found: Any) -> str:
    rows = found.get("status", {}).get("rows", "")
    return str(rows.partition('"uid":"')[2].partition('"')[0])
