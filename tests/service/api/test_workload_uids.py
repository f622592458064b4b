"""A request that means one workload does nothing to a later one of the same name."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runai.hub_service.client.calls import WorkloadIdentity
from runai.hub_service.wire.errors import Conflict, Forbidden, NotFound
from runai.hub_service.wire.program_schemas import ExecRequest, ProcessReport
from runai.hub_service.wire.schemas import ScaleRequest, WorkloadDetail
from runai.hub_service.wire.workload_request import SubmitRequest

JOB_REQUEST = SubmitRequest(name="exp1", project="vision", command=["train"], gpus=1)


CONFLICT_MESSAGE = (
    r"^vision/exp1 of \d\d:\d\d on \d+ \w+ is gone: this is another one, submitted by ana at"
)


async def items(stream) -> list[object]:
    """Read a stream to its end."""
    return [item async for item in stream]


CALLS = {
    "workload": lambda client, workload: client.workload(workload),
    "wait": lambda client, workload: client.wait(workload, "", 0.0),
    "explanation": lambda client, workload: client.explanation(workload),
    "suspend": lambda client, workload: client.suspend(workload),
    "resume": lambda client, workload: client.resume(workload),
    "scale": lambda client, workload: client.scale(workload, ScaleRequest(workers=2)),
    "keep": lambda client, workload: client.keep(workload),
    "release": lambda client, workload: client.release(workload),
    "regain": lambda client, workload: client.regain(workload),
    "attach": lambda client, workload: client.attach(workload, ProcessReport(pid=2, created=1.0)),
    "environment": lambda client, workload: client.environment(workload),
    "logs": lambda client, workload: items(client.logs(workload)),
    "execute": lambda client, workload: items(
        client.execute(workload, ExecRequest(command=["ls"]))
    ),
    "delete": lambda client, workload: client.delete(workload),
}


@pytest.fixture
async def namesakes(simulated):
    """Submit a job, delete it, submit another of its name; return the service and both."""
    owner = await simulated.client("ana")
    await owner.submit(SubmitRequest(name="first", project="vision", command=["train"], gpus=4))
    deleted = (await owner.submit(JOB_REQUEST)).workloads[0]
    await owner.delete(deleted)
    successor = (await owner.submit(JOB_REQUEST)).workloads[0]
    return simulated, deleted, successor


async def test_every_workload_route_has_a_uid_parameter(simulated):
    client = await simulated.client("ana")
    schema = (await client.transport._http.get().get("api/v1/openapi.json")).json()
    routes = {
        (method, path): {parameter["name"] for parameter in route.get("parameters", [])}
        for path, methods in schema["paths"].items()
        if "/workloads/{project}/{name}" in path
        for method, route in methods.items()
    }

    assert len(routes) == len(CALLS) - 1, "wait is a kind of describe"
    assert [route for route, names in routes.items() if "uid" not in names] == []


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_api_call_with_the_uid_of_a_deleted_workload_is_refused(namesakes, call):
    simulated, deleted, successor = namesakes
    client = await simulated.client("hub" if call is CALLS["attach"] else "ana")

    with pytest.raises(Conflict, match=CONFLICT_MESSAGE) as refused:
        await call(client, deleted)

    assert refused.value.code == "another_workload"
    current = await (await simulated.client("ana")).workload("vision/exp1")
    assert (current.uid, current.state) == (successor.uid, "queued")


@pytest.mark.parametrize(("user", "error"), [("nel", NotFound), ("mia", Forbidden)])
async def test_permission_is_checked_before_the_workload_uid(namesakes, user, error):
    simulated, deleted, _ = namesakes
    client = await simulated.client(user)

    with pytest.raises(error):
        await client.delete(deleted)


async def test_api_call_without_uid_reaches_the_current_workload_of_that_name(namesakes):
    simulated, _, successor = namesakes
    client = await simulated.client("ana")

    assert (await client.suspend("vision/exp1")).uid == successor.uid
    assert (await client.resume(WorkloadIdentity("vision/exp1", ""))).state == "queued"


@pytest.mark.parametrize(
    ("by_name", "user", "outcome"),
    [
        pytest.param(True, "ana", WorkloadDetail, id="by name"),
        pytest.param(True, "mia", Forbidden, id="by name, of another user"),
        pytest.param(False, "ana", Conflict, id="by uid"),
        pytest.param(False, "mia", Forbidden, id="by uid, of another user"),
    ],
)
async def test_long_poll_checks_permission_and_uid_of_the_returned_workload(
    simulated, monkeypatch, by_name, user, outcome
):
    ana, cluster = await simulated.client("ana"), simulated.platform.cluster
    await ana.submit(SubmitRequest(name="first", project="vision", command=["train"], gpus=4))
    await ana.submit(JOB_REQUEST)
    suspended, wait, waits = await ana.suspend("vision/exp1"), cluster.wait, asyncio.Event()
    spec = (await cluster.workload(suspended.id)).spec

    async def signalled_wait(*arguments):
        waits.set()
        return await wait(*arguments)

    monkeypatch.setattr(cluster, "wait", signalled_wait)
    polled = asyncio.create_task(
        ana.wait(suspended.id if by_name else suspended, suspended.version)
    )
    await waits.wait()
    await cluster.delete(suspended.id, by="ana")
    await cluster.submit([replace(spec, user=user, command=("secret",), key="")])

    results = await asyncio.gather(polled, return_exceptions=True)
    assert [type(each) for each in results] == [outcome]
