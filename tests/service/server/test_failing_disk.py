"""The service on a disk that really fails: errors for users and in `health/ready`, and their end.

The disk is full to the last byte, or the kernel denies writes to its files. It is repaired while
no request arrives, because a load balancer that waits for `health/ready` sends none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from crashes.small_disk import SmallDisk, immutable
from runai.hub_service.cli.doctor.platform_checks import check_room_for_files
from runai.hub_service.client import Client
from runai.hub_service.clusters.local.store.cluster_sqlite import BALLAST_BYTES
from runai.hub_service.wire.errors import Unavailable
from runai.hub_service.wire.workload_request import SubmitRequest
from service_process import TOKEN, Service
from waiting import eventually

pytestmark = [pytest.mark.mounts, pytest.mark.timeout(300)]

COUNTING_SCRIPT = (
    "import time, itertools\nfor n in itertools.count(): print(n, flush=True); time.sleep(0.05)"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    (tmp_path / "data").mkdir()
    small_disk = SmallDisk(tmp_path / "data", mib=32)
    yield small_disk
    small_disk.unmount()


@pytest.fixture
def service_on_small_disk(
    disk: SmallDisk, tmp_path: Path, free_port: Callable[[], int]
) -> Iterator[Service]:
    """Run the service with its data directory on a separate small disk."""
    service = Service(tmp_path, free_port())
    service.start()
    yield service
    service.clean()


@contextmanager
def full_disk(disk: SmallDisk) -> Iterator[None]:
    disk.fill()
    try:
        yield
    finally:
        disk.make_room()


@contextmanager
def disk_without_inodes(disk: SmallDisk) -> Iterator[None]:
    disk.take_all_files()
    try:
        yield
    finally:
        disk.give_back_files()


@contextmanager
def read_only_disk(disk: SmallDisk) -> Iterator[None]:
    files = sorted(disk.folder.glob("cluster.sqlite*"))
    immutable(files, are=True)
    try:
        yield
    finally:
        immutable(files, are=False)


def test_failing_disk_is_reported_while_it_fails_and_not_afterwards(
    disk: SmallDisk, service_on_small_disk: Service
):
    service = service_on_small_disk
    service.submit("gets-on", COUNTING_SCRIPT)
    service.until("vision/gets-on", "running")
    assert readiness(service) == (200, "")

    for disk_failure in (full_disk, read_only_disk):
        with disk_failure(disk), Client(service.client.url, TOKEN, patience_s=0) as ana:
            # The database still stores submissions that fit into its log.
            refused = eventually(partial(refusal, ana), within=60)

            assert refused is not None
            assert refused.code == "not_stored"
            assert "Nothing can be stored now" in refused.message
            assert refused.retry_after == 2.0
            assert "An admin makes room" in refused.hint
            assert readiness(service) == (503, "database")
            assert httpx.get(f"{service.client.url}health/live", timeout=60).status_code == 200
            assert service.client.workload("vision/gets-on").state == "running"
            # A request to health/ready does not itself make the service ready.
            assert readiness(service) == (503, "database")

        # No request arrives and no state changes by itself: one job continues to run.
        eventually(lambda: readiness(service) == (200, ""), within=60)
        service.submit("afterwards", "print('done')")
        service.until("vision/afterwards", "succeeded")
        service.client.delete("vision/afterwards")
        assert service.client.workload("vision/gets-on").attempts == 1


def test_disk_without_free_inodes_delays_only_job_starts(
    disk: SmallDisk, service_on_small_disk: Service
):
    service = service_on_small_disk
    service.submit("gets-on", COUNTING_SCRIPT)
    service.until("vision/gets-on", "running")

    with disk_without_inodes(disk):
        (finding,) = check_room_for_files(disk.folder)
        service.submit("waits", "print('done')")
        eventually(lambda: "No space left" in service.log.read_text(), within=30)

    done = service.until("vision/waits", "succeeded", "failed")
    assert (done.state, done.attempts) == ("succeeded", 1)
    assert service.client.workload("vision/gets-on").attempts == 1
    assert (finding.verdict, finding.subject) == ("failure", "files")
    assert finding.text == f"0 more files fit beside {disk.folder}"
    assert "du --inodes" in finding.mend


def test_job_exit_on_a_full_disk_is_recorded_once(
    disk: SmallDisk, service_on_small_disk: Service, tmp_path: Path
):
    service, exit_codes = service_on_small_disk, {"succeeds": 0, "fails": 3}
    exit_fifos = {name: tmp_path / name for name in exit_codes}
    for name, exit_fifo in exit_fifos.items():
        os.mkfifo(exit_fifo)
        service.submit(name, f"import sys; sys.exit(int(open({str(exit_fifo)!r}).readline()))")
        service.until(f"vision/{name}", "running")

    with full_disk(disk), Client(service.client.url, TOKEN, patience_s=0) as ana:
        eventually(lambda: refusal(ana), within=60)
        disk.fill()
        for name, exit_code in exit_codes.items():
            exit_fifos[name].write_text(f"{exit_code}\n")
            worker_dir = disk.folder / f"jobs/vision/{name}/attempt-1/worker-0"
            eventually(partial(has_noted_end, worker_dir), within=60)

    for name, exit_code in exit_codes.items():
        ended = service.until(f"vision/{name}", "succeeded", "failed", "retrying")
        assert (ended.state, ended.exit_code) == ("failed" if exit_code else "succeeded", exit_code)
        assert ended.attempts == 1


DISK_FILLING_SCRIPT = """
import os, pathlib, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until it is killed, it takes all room there is
with pathlib.Path(os.environ["RUNAI_CHECKPOINT_DIR"], "filler").open("wb", buffering=0) as file:
    while True:
        try:
            file.write(bytes(4096))
        except OSError:
            pass
"""


@pytest.mark.parametrize("action", ["suspend", "delete"])
def test_job_that_fills_the_disk_can_be_stopped(
    disk: SmallDisk, service_on_small_disk: Service, action: str
):
    service = service_on_small_disk
    job_id = "vision/fills"
    service.submit("fills", DISK_FILLING_SCRIPT)
    service.until(job_id, "running")
    with Client(service.client.url, TOKEN, patience_s=0) as ana:
        eventually(lambda: refusal(ana), within=120)
        assert job_id in workload_ids(service)

        (ana.suspend if action == "suspend" else ana.delete)(job_id)

    # Nothing makes room meanwhile: the job's files do, once it is deleted.
    if action == "suspend":
        service.until(job_id, "suspended")
        assert list(disk.folder.glob("jobs/vision/fills/**/filler"))
        service.client.delete(job_id)
    eventually(lambda: job_id not in workload_ids(service), within=60)
    eventually(lambda: readiness(service) == (200, ""), within=60)
    eventually(partial(has_whole_ballast, service, disk), within=60)


def has_whole_ballast(service: Service, disk: SmallDisk) -> bool:
    """Write something; return True if the room that the full disk took is reserved again."""
    refusal(service.client)
    return (disk.folder / "cluster.sqlite-ballast").stat().st_size == BALLAST_BYTES


def workload_ids(service: Service) -> set[str]:
    return {workload.id for workload in service.client.workloads()}


def has_noted_end(worker_dir: Path) -> bool:
    return (worker_dir / "ended.json").exists()


def refusal(client: Client) -> Unavailable | None:
    """Submit a job; return the error if it was refused."""
    try:
        client.submit(SubmitRequest(owner="ana", command=["true"], source="#" * 50_000))
    except Unavailable as refused:
        return refused
    return None


def readiness(service: Service) -> tuple[int, str]:
    """Return the status of health/ready and the part that fails."""
    reply = httpx.get(f"{service.client.url}health/ready", timeout=60)
    return reply.status_code, reply.json().get("because", "")
