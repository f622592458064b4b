"""A supervisor on a full disk loses no note: it waits for room, with the worker's end.

Supervisor and witness are real; the kernel refuses their writes to files, and later allows them
again. `service/server/test_failing_disk.py` has a whole service on a full disk.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from crashes.small_disk import SmallDisk
from labs import local_lab, plan
from labs import start as on_device
from runai.hub_service.clusters.states.transition import ExitStatus
from starts import has_ended
from waiting import eventually_async

PIPE_BYTES = 1 << 16


@contextmanager
def refuse_writes(*processes: psutil.Process) -> Iterator[None]:
    """Make all file writes of these processes fail, as on a full disk."""
    before = {process: process.rlimit(psutil.RLIMIT_FSIZE) for process in processes}
    for process, (_, hard_limit) in before.items():
        process.rlimit(psutil.RLIMIT_FSIZE, (0, hard_limit))
    try:
        yield
    finally:
        for process, limits in before.items():
            with suppress(psutil.NoSuchProcess):  # it was killed
                process.rlimit(psutil.RLIMIT_FSIZE, limits)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Make the FIFO from which a worker reads when and how it ends."""
    os.mkfifo(tmp_path / "orders")
    return tmp_path / "orders"


def test_worker_exit_on_a_full_disk_is_recorded_when_there_is_room(start, orders, eventually):
    start("sh", "-c", f"read -r code < {orders}; exit $code")
    supervisor, worker = start.supervisor, start.worker

    with refuse_writes(supervisor):
        orders.write_text("3\n")
        eventually(lambda: has_ended(worker))

        assert start.attempt.holder() is not None  # to the service it is still running
        assert start.attempt.final_exit() is None
        assert start.attempt.program_exit() is None

    assert ExitStatus(3) == start.final_exit()
    assert ExitStatus(3) == start.attempt.program_exit()


@pytest.mark.parametrize("includes_witness", [False, True], ids=["supervisor", "and witness"])
def test_worker_exit_on_a_full_disk_is_known_after_its_supervisor_is_killed(
    start, orders, eventually, includes_witness
):
    start("sh", "-c", f"read -r code < {orders}; exit $code")
    supervisor, witness, worker = start.supervisor, psutil.Process(start.pid), start.worker

    with refuse_writes(supervisor, *([witness] if includes_witness else [])):
        orders.write_text("0\n")
        eventually(lambda: has_ended(worker))
        supervisor.kill()
        if includes_witness:
            eventually(lambda: not psutil.pid_exists(supervisor.pid))
            assert start.attempt.holder() == start.pid

    os.waitpid(start.pid, 0)
    assert None is start.attempt.final_exit()
    assert ExitStatus(0) == start.attempt.program_exit()


def test_background_process_of_an_ended_worker_ends_on_a_full_disk(start, orders, eventually):
    start("sh", "-c", f"setsid sleep 1000 & echo $!; echo ready; read -r code < {orders}")
    eventually(lambda: start.printed("ready"))
    background = psutil.Process(int(start.output().split()[0]))

    with refuse_writes(start.supervisor):
        orders.write_text("0\n")
        eventually(lambda: not background.is_running() or has_ended(background))

    assert start.final_exit().exit_code == 0


def test_worker_stop_on_a_full_disk_is_recorded_as_requested(start, eventually):
    start("sh", "-c", "trap 'exit 143' TERM; echo ready; while :; do sleep 0.05; done")
    eventually(lambda: start.printed("ready"))
    worker = start.worker

    with refuse_writes(start.supervisor):
        start.stop()
        eventually(lambda: has_ended(worker))

    assert ExitStatus(143, stop_requested=True) == start.final_exit()


def test_job_output_on_a_full_disk_is_lost_but_later_output_is_logged(start, orders, tmp_path):
    last_fifo = tmp_path / "last"
    os.mkfifo(last_fifo)
    # More than a pipe holds: a writer that finishes proves that the output is being read.
    long_output = f"yes meanwhile | head -c {4 * PIPE_BYTES}"
    start("sh", "-c", f"echo before; read -r _ < {orders}; {long_output}; cat {last_fifo}")

    with ExitStack() as stack:
        with refuse_writes(start.supervisor):
            orders.write_text("go on\n")
            # The worker opens this FIFO when it has written its long output.
            pipe = stack.enter_context(last_fifo.open("w"))
        pipe.write("afterwards\n")

    assert ExitStatus(0) == start.final_exit()
    assert start.output().endswith("afterwards\n")
    assert len(start.output()) < 2 * PIPE_BYTES


@pytest.fixture
def full_disk(tmp_path: Path) -> Generator[SmallDisk]:
    folder = tmp_path / "home"
    folder.mkdir()
    disk = SmallDisk(folder, mib=1)
    disk.fill()
    yield disk
    disk.unmount()


@pytest.mark.mounts
def test_job_folders_on_a_full_disk_are_made_when_there_is_room(start, full_disk, eventually):
    checkpoints, source = full_disk.folder / "vision/exp/checkpoints", full_disk.folder / "a.py"
    instructions = {"directories": [str(checkpoints)], "files": {str(source): "# a\n" * 10_000}}

    start("cat", str(source), **instructions)
    eventually(lambda: start.printed("No space left on device; it is tried again"))
    assert start.attempt.process() is None
    assert start.attempt.final_exit() is None
    full_disk.make_room()

    assert ExitStatus(0) == start.final_exit()
    assert start.output().endswith("# a\n" * 10_000)
    assert checkpoints.is_dir()


@pytest.mark.mounts
def test_supervisor_that_waits_for_disk_space_ends_on_a_stop_request(start, full_disk, eventually):
    start("true", directories=[str(full_disk.folder / "checkpoints")])
    eventually(lambda: start.printed("it is tried again"))

    start.stop()

    assert ExitStatus(None, stop_requested=True) == start.final_exit()


@pytest.mark.mounts
def test_worker_start_fails_with_a_reason_if_the_disk_remains_full(start, full_disk):
    checkpoints = str(full_disk.folder / "checkpoints")
    text = f"cannot start: {checkpoints}: No space left on device"

    start("true", directories=[checkpoints], room_seconds=1)

    assert ExitStatus(127, text=text) == start.final_exit()


@pytest.mark.mounts
async def test_job_start_on_a_full_disk_is_made_when_there_is_room(tmp_path, caplog):
    jobs_dir = tmp_path / "data" / "jobs"
    jobs_dir.mkdir(parents=True)
    disk = SmallDisk(jobs_dir, mib=8)
    try:
        async with local_lab(tmp_path) as lab:
            spec = lab.job("no-room-yet")
            await lab.cluster.submit([spec])
            disk.fill()
            assert await lab.cluster.apply(plan(on_device(spec.id, 0))) == []

            await eventually_async(lambda: "No space left on device" in caplog.text)
            assert (await lab.cluster.workload(spec.id)).state == "starting"
            disk.make_room()

            assert (await lab.until(spec.id, "running")).attempts == 1
    finally:
        disk.unmount()
