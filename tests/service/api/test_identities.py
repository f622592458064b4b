"""A request that means one workload does nothing to a later one of the same name."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runai.hub_service.client.calls import WorkloadIdentity
from runai.hub_service.wire.errors import Conflict, Forbidden, NotFound
from runai.hub_service.wire.program_schemas import ExecRequest, ProcessReport
from runai.hub_service.wire.schemas import ScaleRequest, SubmitRequest, WorkloadDetail

JOB = SubmitRequest(name="exp1", project="vision", command=["train"], gpus=1)


SENTENCE = r"^vision/exp1 of \d\d:\d\d on \d+ \w+ is gone: this is another one, submitted by ana at"


async def items(stream) -> list[object]:
    """Read a stream to its end."""
    return [item async for item in stream]


CALLS = {
    "workload": lambda client, seen: client.workload(seen),
    "wait": lambda client, seen: client.wait(seen, "", 0.0),
    "explanation": lambda client, seen: client.explanation(seen),
    "suspend": lambda client, seen: client.suspend(seen),
    "resume": lambda client, seen: client.resume(seen),
    "scale": lambda client, seen: client.scale(seen, ScaleRequest(workers=2)),
    "keep": lambda client, seen: client.keep(seen),
    "release": lambda client, seen: client.release(seen),
    "regain": lambda client, seen: client.regain(seen),
    "attach": lambda client, seen: client.attach(seen, ProcessReport(pid=2, created=1.0)),
    "environment": lambda client, seen: client.environment(seen),
    "logs": lambda client, seen: items(client.logs(seen)),
    "execute": lambda client, seen: items(client.execute(seen, ExecRequest(command=["ls"]))),
    "delete": lambda client, seen: client.delete(seen),
}


@pytest.fixture
async def namesakes(simulated):
    """Submit a job, delete it, submit another of its name; return the service and both."""
    owner = await simulated.client("ana")
    await owner.submit(SubmitRequest(name="first", project="vision", command=["train"], gpus=4))
    earlier = (await owner.submit(JOB)).workloads[0]
    await owner.delete(earlier)
    later = (await owner.submit(JOB)).workloads[0]
    return simulated, earlier, later


async def test_every_route_of_a_workload_takes_its_uid(simulated):
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
async def test_call_about_the_earlier_workload_is_refused(namesakes, call):
    simulated, earlier, later = namesakes
    client = await simulated.client("hub" if call is CALLS["attach"] else "ana")

    with pytest.raises(Conflict, match=SENTENCE) as refused:
        await call(client, earlier)

    assert refused.value.code == "another_workload"
    there = await (await simulated.client("ana")).workload("vision/exp1")
    assert (there.uid, there.state) == (later.uid, "queued")


@pytest.mark.parametrize(("user", "error"), [("nel", NotFound), ("mia", Forbidden)])
async def test_permission_is_checked_before_the_identity(namesakes, user, error):
    simulated, earlier, _ = namesakes
    client = await simulated.client(user)

    with pytest.raises(error):
        await client.delete(earlier)


async def test_call_by_name_alone_means_whatever_has_the_name(namesakes):
    simulated, _, later = namesakes
    client = await simulated.client("ana")

    assert (await client.suspend("vision/exp1")).uid == later.uid
    assert (await client.resume(WorkloadIdentity("vision/exp1", ""))).state == "queued"


@pytest.mark.parametrize(
    ("by_name", "user", "answer"),
    [
        pytest.param(True, "ana", WorkloadDetail, id="by name"),
        pytest.param(True, "mia", Forbidden, id="by name, of another user"),
        pytest.param(False, "ana", Conflict, id="by uid"),
        pytest.param(False, "mia", Forbidden, id="by uid, of another user"),
    ],
)
async def test_long_poll_checks_the_workload_that_it_answers_with(
    simulated, monkeypatch, by_name, user, answer
):
    ana, cluster = await simulated.client("ana"), simulated.platform.cluster
    await ana.submit(SubmitRequest(name="first", project="vision", command=["train"], gpus=4))
    await ana.submit(JOB)
    seen, wait, waits = await ana.suspend("vision/exp1"), cluster.wait, asyncio.Event()
    spec = (await cluster.workload(seen.id)).spec

    async def begun(*asked):
        waits.set()
        return await wait(*asked)

    monkeypatch.setattr(cluster, "wait", begun)
    polled = asyncio.create_task(ana.wait(seen.id if by_name else seen, seen.version))
    await waits.wait()
    await cluster.delete(seen.id, by="ana")
    await cluster.submit([replace(spec, user=user, command=("secret",), key="")])

    answered = await asyncio.gather(polled, return_exceptions=True)
    assert [type(each) for each in answered] == [answer]
