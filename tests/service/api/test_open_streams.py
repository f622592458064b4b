"""Open streams follow their reader's permissions.

A stream ends, or shows less, when its reader loses a permission.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.services import event_stream
from runai.hub_service.model.cluster import OutputChunk, ProgramEnd
from runai.hub_service.processes.shell_environment import RENDEZVOUS
from runai.hub_service.wire.program_schemas import ExecRequest
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually_async

JOB_ID = "vision/exp-of-ana"
STREAMS = {
    "events": "api/v1/events",
    "GPU page": "live/gpus",
    "workload page": f"live/workloads/{JOB_ID}",
    "output": f"api/v1/workloads/{JOB_ID}/logs?follow=true",
}
EXEC = f"api/v1/workloads/{JOB_ID}/exec"


class EndlessPrograms:
    """A stand-in for programs that run beside a workload in its pod: each writes without end."""

    ended = 0
    """Programs with a closed output stream."""

    async def execute(self, *_program: object, uid: str) -> AsyncIterator[OutputChunk | ProgramEnd]:
        return self._written()

    async def _written(self) -> AsyncIterator[OutputChunk | ProgramEnd]:
        try:
            while True:
                yield OutputChunk(b"a secret")
                await asyncio.sleep(0.02)
        finally:
            self.ended += 1


@dataclass
class Reader:
    """A client that keeps one stream open."""

    status: int
    ended: bool = False
    pieces: list[str] = field(default_factory=list)

    async def read(self, pieces: AsyncIterator[str]) -> None:
        async for piece in pieces:
            self.pieces.append(piece)
        self.ended = True

    def contains(self, text: str = "exp-of-ana") -> bool:
        return any(text in piece for piece in self.pieces)


@pytest.fixture
async def open_stream(simulated, monkeypatch) -> AsyncIterator:
    """Open streams of a platform that checks its readers every 0.1 s."""
    monkeypatch.setattr(event_stream, "CHECK_EVERY_S", 0.1)
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest(name="exp-of-ana", gpus=1, command=["train"]))
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        reading = []

        async def open_as(user: str, path: str, body: object = None) -> Reader:
            http = await stack.enter_async_context(simulated.http(user))
            request = http.stream("POST" if body else "GET", path, json=body)
            reply = await stack.enter_async_context(request)
            reader = Reader(reply.status_code)
            reading.append(tasks.create_task(reader.read(reply.aiter_text())))
            return reader

        try:
            yield open_as
        finally:
            for task in reading:
                task.cancel()


@pytest.mark.parametrize("path", STREAMS.values(), ids=STREAMS)
async def test_open_stream_ends_when_its_readers_token_is_revoked(simulated, open_stream, path):
    reader = await open_stream("vic", path)
    assert (reader.status, reader.ended) == (200, False)

    del simulated.platform.authenticator._users.actors["vic"]

    await eventually_async(lambda: reader.ended, what="the stream ends")


class PodPrograms:
    """A stand-in for programs in a pod, whose environment is that of a gang's worker."""

    async def execute(
        self, _workload: str, _worker: int, command: Sequence[str], _stdin: bytes, *, uid: str
    ) -> AsyncIterator[OutputChunk | ProgramEnd]:
        return self._output_of(command, {"PATH": os.environ["PATH"], "WORKER": uid})

    async def _output_of(
        self, command: Sequence[str], environment: dict[str, str]
    ) -> AsyncIterator[OutputChunk | ProgramEnd]:
        environment |= dict.fromkeys(RENDEZVOUS, "0")
        program = await asyncio.create_subprocess_exec(*command, env=environment, stdout=-1)
        yield OutputChunk((await program.communicate())[0])
        assert program.returncode is not None
        yield ProgramEnd(program.returncode)


@pytest.mark.parametrize(
    ("fields", "has_rendezvous"),
    [({}, True), ({"workers": 2}, False), ({"elastic": True}, False)],
    ids=["one worker", "gang", "elastic job"],
)
async def test_exec_program_in_a_gangs_pod_gets_no_rendezvous_variables(
    simulated, fields, has_rendezvous
):
    simulated.platform.programs = PodPrograms()
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest(name="exp", gpus=1, command=["train"], **fields))
    job, command = await ana.workload("vision/exp"), ["sh", "-c", "env; exit 3"]

    pieces = [piece async for piece in ana.execute(job, ExecRequest(command=command), 0)]

    names = {line.partition("=")[0] for line in pieces[0].stdout.decode().splitlines()}
    assert names & set(RENDEZVOUS) == (set(RENDEZVOUS) if has_rendezvous else set())
    assert {"PATH", "WORKER"} <= names
    assert pieces[-1].exit_code == 3


@pytest.mark.parametrize("stream", ["workload page", "output"])
async def test_open_streams_of_a_workload_end_when_reader_leaves_project(
    simulated, open_stream, stream
):
    root, reader = await simulated.client("root"), await open_stream("vic", STREAMS[stream])
    outsider = await open_stream("out", STREAMS[stream])
    assert (reader.status, reader.ended, outsider.status) == (200, False, 404)

    await root.put_project("vision", ProjectPut(members=["ana"], admins=[]))

    await eventually_async(lambda: reader.ended, what="the stream ends")


LOST_PERMISSIONS = {
    "revoked token": None,
    "read-only token": Actor("ana", may_write=False),
    "token of another user": Actor("mia"),
}


@pytest.mark.parametrize("actor", LOST_PERMISSIONS.values(), ids=LOST_PERMISSIONS)
async def test_exec_stream_ends_when_its_reader_loses_the_right_to_run_programs(
    simulated, open_stream, actor
):
    programs = simulated.platform.programs = EndlessPrograms()
    actors = simulated.platform.authenticator._users.actors
    reader = await open_stream("ana", EXEC, {"command": ["sh"]})
    assert (reader.status, reader.ended) == (200, False)

    if actor is None:
        del actors["ana"]
    else:
        actors["ana"] = actor

    await eventually_async(lambda: reader.ended and programs.ended == 1, what="the stream ends")


async def test_job_output_stream_ends_when_reader_loses_project_group(simulated, open_stream):
    """Only the hub's answer about the user changes; the project does not."""
    users = simulated.platform.authenticator._users
    root = await simulated.client("root")
    await root.put_project("vision", ProjectPut(members=["ana"], admin_groups=["nlp-people"]))
    reader = await open_stream("nel", STREAMS["output"])
    assert (reader.status, reader.ended) == (200, False)

    users.actors["nel"] = replace(users.actors["nel"], groups=frozenset())

    await eventually_async(lambda: reader.ended, what="the stream ends")


@pytest.mark.parametrize("stream", ["events", "GPU page"])
async def test_cluster_wide_streams_hide_new_workloads_after_reader_leaves_project(
    simulated, open_stream, stream
):
    root, ana = await simulated.client("root"), await simulated.client("ana")
    outsider, reader = (
        await open_stream("out", STREAMS[stream]),
        await open_stream("vic", STREAMS[stream]),
    )
    await eventually_async(reader.contains, what="it is shown at first")

    await root.put_project("vision", ProjectPut(members=["ana"], admins=[]))
    await ana.submit(SubmitRequest(name="later", gpus=1, command=["train"]))
    await root.put_project("seen-by-all", ProjectPut(quota=1))
    for client in (reader, outsider):
        await eventually_async(partial(client.contains, "seen-by-all"), what="it is drawn anew")
        assert "vision/later" not in "".join(client.pieces)
        assert not client.ended
    assert not outsider.contains()
