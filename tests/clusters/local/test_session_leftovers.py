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
from runai.hub_service.clusters.local.local_executor import LocalCluster
from runai.hub_service.clusters.local.processes import reconciler
from runai.hub_service.clusters.local.processes.left_over_processes import LeftOverProcesses
from runai.hub_service.clusters.local.processes.reconciler import THIS_MACHINE
from runai.hub_service.model.records import Process, WorkloadSpec
from runai.hub_service.processes import session_end
from runai.hub_service.processes.session_end import LeftOver, SessionProcesses
from waiting import eventually_async

EndSession = Callable[[SessionProcesses], Awaitable[Sequence[LeftOver]]]
DEAF_PROGRAM = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'SIGTERM\\n'))\n"
    "os.write(1, b'ready\\n')\n"
    "while True: time.sleep(60)\n"
)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


async def _grant_session(lab: LocalLab) -> WorkloadSpec:
    spec = lab.session()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))
    return spec


async def _start_server_session(
    lab: LocalLab, output: Path
) -> tuple[WorkloadSpec, subprocess.Popen[bytes]]:
    """Start a session whose server has started a program that does not end by SIGTERM."""
    spec = await _grant_session(lab)
    variables = (await lab.cluster.environment(spec.id)).variables
    server = _start_server(output, variables)
    await eventually_async(lambda: output.read_text() == "ready\n")
    created = psutil.Process(server.pid).create_time()
    await lab.cluster.attach(spec.id, Process(server.pid, created))
    return spec, server


def _start_server(output: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            ["sh", "-c", f'setsid {sys.executable} -I -S -c "{DEAF_PROGRAM}" & exec sleep 1000'],
            env={**os.environ, **variables},
            stdout=file,
            start_new_session=True,
        )


async def _end_session_with(lab: LocalLab, end: EndSession) -> WorkloadSpec:
    """End a session's server; `end` ends what it has left."""
    lab.cluster.executor._reconciler._process_control = replace(THIS_MACHINE, end_session=end)
    spec = await _grant_session(lab)
    await lab.cluster.attach(spec.id, await lab.session_process())
    await lab.end_session(spec)
    lab.close()
    return spec


def _kill(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()


async def test_session_devices_are_freed_when_its_leftover_processes_end(
    tmp_path, output, monkeypatch
):
    monkeypatch.setattr(session_end, "TERMINATED_WITHIN_S", 3600)
    async with local_lab(tmp_path, Clock()) as lab:
        spec, server = await _start_server_session(lab, output)
        _kill(server)
        await eventually_async(lambda: output.read_text() == "ready\nSIGTERM\n")
        allocated_before = (await lab.cluster.workload(spec.id)).allocated
        uid = (await lab.cluster.workload(spec.id)).uid
        [leftover] = SessionProcesses(uid, 0, os.geteuid()).find()
        leftover.kill()
        await lab.until(spec.id, "ended")

        assert allocated_before == 500  # half a GPU
        assert (await lab.cluster.workload(spec.id)).allocated == 0


@pytest.mark.parametrize("deleted", [False, True], ids=["crashed", "deleted"])
async def test_restarted_service_finishes_ending_a_session(tmp_path, output, monkeypatch, deleted):
    monkeypatch.setattr(session_end, "TERMINATED_WITHIN_S", 3600)
    async with local_lab(tmp_path, Clock(), forget=False) as lab:
        spec, server = await _start_server_session(lab, output)
        if deleted:
            await lab.cluster.delete(spec.id, by="ana")
        else:
            _kill(server)
        await eventually_async(lambda: output.read_text() == "ready\nSIGTERM\n")
        [leftover] = await _session_leftovers(lab, spec)
    monkeypatch.setattr(session_end, "TERMINATED_WITHIN_S", 0.1)

    async with local_lab(tmp_path, Clock()) as lab:
        if deleted:
            await lab.until_deleted(spec.id)
        else:
            await lab.until(spec.id, "ended")

    server.wait()
    assert not leftover.is_running() or leftover.status() == psutil.STATUS_ZOMBIE


async def _session_leftovers(lab: LocalLab, spec: WorkloadSpec) -> list[psutil.Process]:
    """Return the processes of a session beside its server."""
    uid = (await lab.cluster.workload(spec.id)).uid
    processes = SessionProcesses(uid, 0, os.geteuid()).find()
    return [process for process in processes if process.cmdline()[1:3] == ["-I", "-S"]]


async def test_gpu_device_with_a_leftover_process_is_faulty_until_the_process_exits(tmp_path):
    process = sleeping()
    created = psutil.Process(process.pid).create_time()

    async def end_with_leftover(_session: SessionProcesses) -> Sequence[LeftOver]:
        return [LeftOver(process.pid, created, "burn", "pat")]

    async with local_lab(tmp_path, Clock()) as lab:
        spec = await _end_session_with(lab, end_with_leftover)
        await lab.until(spec.id, "ended")
        faults = await _faults(lab.cluster)
        await lab.cluster.note_faults(NODE, dict.fromkeys(faults, ""))
        faults_after_report = await _faults(lab.cluster)
        process.kill()
        process.wait()
        await lab.cluster.executor._left_over.drop_exited()
        faults_after_exit = await _faults(lab.cluster)

    uuid = DEVICES[0].uuid
    assert faults[uuid] == f"burn (process {process.pid} of pat) is left over from {spec.id}"
    assert faults_after_report == faults
    assert set(faults_after_exit.values()) == {""}


async def test_leftover_process_is_still_a_device_fault_after_a_service_restart(tmp_path):
    process = sleeping()
    leftover = LeftOver(process.pid, psutil.Process(process.pid).create_time(), "burn", "pat")
    uuid = DEVICES[0].uuid
    async with local_lab(tmp_path, Clock(), forget=False) as lab:
        lab.cluster.executor._left_over.add("vision/lab-ana", [uuid], [leftover])
        faults = await _faults(lab.cluster)

    async with local_lab(tmp_path, Clock(), forget=False) as lab:
        [restored] = await eventually_async(partial(_faulty, lab.cluster))
        process.kill()
        process.wait()
        await lab.cluster.executor._left_over.drop_exited()
        faults_after_exit = await _faults(lab.cluster)
    async with local_lab(tmp_path, Clock()) as lab:
        assert lab.cluster.executor._left_over.fault(uuid) == ""

    assert restored == faults[uuid]
    assert set(faults_after_exit.values()) == {""}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"GPU-1": 3}', '{"GPU-1": ["a/b", [[1]]]}'])
async def test_damaged_file_of_leftover_processes_reports_no_device_fault(tmp_path, content):
    file = tmp_path / "left_over.json"
    file.write_text(content)

    assert LeftOverProcesses(file, lambda _devices: None).fault("GPU-1") == ""


async def test_failed_cleanup_of_an_ended_session_is_retried(tmp_path, monkeypatch):
    monkeypatch.setattr(reconciler, "RETRY_END_AFTER_S", 0.1)
    ends = iter([ZeroDivisionError("a fault of the platform"), None])

    async def end(_session: SessionProcesses) -> Sequence[LeftOver]:
        if failed := next(ends):
            raise failed
        return []

    async with local_lab(tmp_path, Clock()) as lab:
        spec = await _end_session_with(lab, end)

        await lab.until(spec.id, "ended")


async def test_device_fault_reported_by_the_agent_remains_when_a_leftover_process_exits(tmp_path):
    async with local_lab(tmp_path, Clock()) as lab:
        uuid = DEVICES[0].uuid
        leftover = LeftOver(1, 0.0, "burn", "pat")
        lab.cluster.executor._left_over.add("vision/lab-ana", [uuid], [leftover])
        await lab.cluster.note_faults(NODE, {uuid: "XID 79"})

        await lab.cluster.executor._left_over.drop_exited()

        assert (await _faults(lab.cluster))[uuid] == "XID 79"


async def _faulty(cluster: LocalCluster) -> list[str]:
    return [fault for fault in (await _faults(cluster)).values() if fault]


async def _faults(cluster: LocalCluster) -> dict[str, str]:
    return {device.uuid: device.fault for device in (await cluster.devices())[NODE]}
