"""A session's devices are free when all that it started has ended; what outlives that is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from labs import DEVICES, NODE, Clock, LocalLab, local_lab, plan, sleeping, start
from runai.hub_service.clusters.local.driver import LocalCluster
from runai.hub_service.clusters.local.processes import reconciler
from runai.hub_service.clusters.local.processes.left_over import LeftOverProcesses
from runai.hub_service.clusters.local.processes.reconciler import THIS_MACHINE
from runai.hub_service.model.records import Process, WorkloadSpec
from runai.hub_service.processes import session_end
from runai.hub_service.processes.session_end import LeftOver, SessionProcesses
from waiting import eventually_async

EndSession = Callable[[SessionProcesses], Awaitable[Sequence[LeftOver]]]
DEAF = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'told\\n'))\n"
    "os.write(1, b'up\\n')\n"
    "while True: time.sleep(60)\n"
)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


async def _granted(lab: LocalLab) -> WorkloadSpec:
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))
    return spec


async def _server(lab: LocalLab, output: Path) -> tuple[WorkloadSpec, subprocess.Popen[bytes]]:
    """Start a session whose server has started a program that does not end by SIGTERM."""
    spec = await _granted(lab)
    given = (await lab.cluster.environment(spec.id)).variables
    server = _started(output, given)
    await eventually_async(lambda: output.read_text() == "up\n")
    created = psutil.Process(server.pid).create_time()
    await lab.cluster.attach(spec.id, Process(server.pid, created))
    return spec, server


def _started(output: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            ["sh", "-c", f'setsid {sys.executable} -I -S -c "{DEAF}" & exec sleep 1000'],
            env={**os.environ, **variables},
            stdout=file,
            start_new_session=True,
        )


async def _ended_by(lab: LocalLab, end: EndSession) -> WorkloadSpec:
    """End a session's server; `end` ends what it has left."""
    lab.cluster._reconciler._process_control = replace(THIS_MACHINE, end_session=end)
    spec = await _granted(lab)
    await lab.cluster.attach(spec.id, await lab.session_process())
    await lab.end_session(spec)
    lab.close()
    return spec


def _end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()


async def test_devices_are_free_when_what_a_session_left_has_ended(tmp_path, output, monkeypatch):
    monkeypatch.setattr(session_end, "TERMINATED_WITHIN_S", 3600)
    async with local_lab(tmp_path, Clock()) as lab:
        spec, server = await _server(lab, output)
        _end(server)
        await eventually_async(lambda: output.read_text() == "up\ntold\n")
        held = (await lab.cluster.workload(spec.id)).allocated
        [left] = SessionProcesses((await lab.cluster.workload(spec.id)).uid, 0, os.geteuid()).find()
        left.kill()
        await lab.until(spec.id, "ended")

        assert held == 500
        assert (await lab.cluster.workload(spec.id)).allocated == 0


@pytest.mark.parametrize("deleted", [False, True], ids=["crashed", "deleted"])
async def test_next_service_goes_on_with_the_end_of_a_session(
    tmp_path, output, monkeypatch, deleted
):
    monkeypatch.setattr(session_end, "TERMINATED_WITHIN_S", 3600)
    async with local_lab(tmp_path, Clock(), forget=False) as lab:
        spec, server = await _server(lab, output)
        if deleted:
            await lab.cluster.delete(spec.id, by="ana")
        else:
            _end(server)
        await eventually_async(lambda: output.read_text() == "up\ntold\n")
        [deaf] = await _left(lab, spec)
    monkeypatch.setattr(session_end, "TERMINATED_WITHIN_S", 0.1)

    async with local_lab(tmp_path, Clock()) as lab:
        if deleted:
            await lab.until_gone(spec.id)
        else:
            await lab.until(spec.id, "ended")

    server.wait()
    assert not deaf.is_running() or deaf.status() == psutil.STATUS_ZOMBIE


async def _left(lab: LocalLab, spec: WorkloadSpec) -> list[psutil.Process]:
    """Return the processes of a session beside its server."""
    uid = (await lab.cluster.workload(spec.id)).uid
    found = SessionProcesses(uid, 0, os.geteuid()).find()
    return [process for process in found if process.cmdline()[1:3] == ["-I", "-S"]]


async def test_device_with_a_process_left_over_gets_nothing_new_until_it_has_gone(tmp_path):
    other = sleeping()
    created = psutil.Process(other.pid).create_time()

    async def outlived(_session: SessionProcesses) -> Sequence[LeftOver]:
        return [LeftOver(other.pid, created, "burn", "pat")]

    async with local_lab(tmp_path, Clock()) as lab:
        spec = await _ended_by(lab, outlived)
        await lab.until(spec.id, "ended")
        told = await _faults(lab.cluster)
        await lab.cluster.note_faults(NODE, dict.fromkeys(told, ""))
        again = await _faults(lab.cluster)
        other.kill()
        other.wait()
        await lab.cluster._left_over.drop_exited()
        later = await _faults(lab.cluster)

    uuid = DEVICES[0].uuid
    assert told[uuid] == f"burn (process {other.pid} of pat) is left over from {spec.id}"
    assert again == told
    assert set(later.values()) == {""}


async def test_next_service_knows_what_was_left_over(tmp_path):
    other = sleeping()
    left = LeftOver(other.pid, psutil.Process(other.pid).create_time(), "burn", "pat")
    uuid = DEVICES[0].uuid
    async with local_lab(tmp_path, Clock(), forget=False) as lab:
        lab.cluster._left_over.add("vision/lab-ana", [uuid], [left])
        told = await _faults(lab.cluster)

    async with local_lab(tmp_path, Clock(), forget=False) as lab:
        [now] = await eventually_async(partial(_faulty, lab.cluster))
        other.kill()
        other.wait()
        await lab.cluster._left_over.drop_exited()
        later = await _faults(lab.cluster)
    async with local_lab(tmp_path, Clock()) as lab:
        assert lab.cluster._left_over.fault(uuid) == ""

    assert now == told[uuid]
    assert set(later.values()) == {""}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"GPU-1": 3}', '{"GPU-1": ["a/b", [[1]]]}'])
async def test_file_that_cannot_be_read_stops_no_service(tmp_path, content):
    file = tmp_path / "left_over.json"
    file.write_text(content)

    assert LeftOverProcesses(file, lambda _devices: None).fault("GPU-1") == ""


async def test_end_of_a_session_that_fails_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(reconciler, "END_AGAIN_S", 0.1)
    ends = iter([ZeroDivisionError("a fault of ours"), None])

    async def end(_session: SessionProcesses) -> Sequence[LeftOver]:
        if failed := next(ends):
            raise failed
        return []

    async with local_lab(tmp_path, Clock()) as lab:
        spec = await _ended_by(lab, end)

        await lab.until(spec.id, "ended")


async def test_fault_that_the_agent_reports_stays_when_the_process_has_gone(tmp_path):
    async with local_lab(tmp_path, Clock()) as lab:
        uuid = DEVICES[0].uuid
        gone = LeftOver(1, 0.0, "burn", "pat")
        lab.cluster._left_over.add("vision/lab-ana", [uuid], [gone])
        await lab.cluster.note_faults(NODE, {uuid: "XID 79"})

        await lab.cluster._left_over.drop_exited()

        assert (await _faults(lab.cluster))[uuid] == "XID 79"


async def _faulty(cluster: LocalCluster) -> list[str]:
    return [fault for fault in (await _faults(cluster)).values() if fault]


async def _faults(cluster: LocalCluster) -> dict[str, str]:
    return {device.uuid: device.fault for device in (await cluster.devices())[NODE]}
