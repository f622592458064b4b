"""Clusters for tests: simulated (database rows only) or local (processes), with one interface.

Jobs of a lab do nothing until the test ends them with an exit code (`end`). They answer SIGTERM
with the exit code `on_term`; None: the signal kills them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import psutil

from runai.hub_service.clusters.local.local_cluster import open_local_cluster
from runai.hub_service.clusters.local.local_executor import LocalCluster
from runai.hub_service.clusters.local.processes.process_watch import lasting
from runai.hub_service.clusters.simulated import simulated_cluster
from runai.hub_service.clusters.workloads.stored_cluster import StoredCluster
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import Process, WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu, milli_gpus
from runai.hub_service.scheduler.model.snapshot import (
    DeviceShare,
    Move,
    Plan,
    Reason,
    Reserve,
    Resize,
    Start,
    Stop,
)
from runai.hub_service.wire.elastic_messages import ElasticFiles, WorkerPhase, WorkerStatus
from waiting import eventually_async

NODE = "box"
DEVICES = [
    Device(index, f"SIM-{index}", "Simulated GPU", 16_000, simulated=True) for index in range(4)
]

OBEDIENT_JOB = """
import os, signal, sys
place, on_term = sys.argv[1:]
if on_term == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif on_term:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(int(on_term)))
path = os.path.join(place, os.environ["RUNAI_WORKER"].replace("/", "+"))
if not os.path.exists(path):
    os.mkfifo(path)
with open(path) as orders:
    sys.exit(int(orders.readline()))
"""


class Clock:
    """A clock that tests advance."""

    def __init__(self, at: float = 1_000_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


class Lab:
    """A cluster under test and its controls; subclasses are `local` and `simulated`."""

    kind = ""

    def __init__(self, cluster: StoredCluster, clock: Clock) -> None:
        self.cluster = cluster
        self.clock = clock

    def job(
        self, name: str = "exp", *, on_term: int | str | None = None, **fields: Any
    ) -> WorkloadSpec:
        """Return a job that requests one GPU, for ana in vision, unless the fields differ."""
        gpus = milli_gpus(fields.pop("gpus", 1))
        workers = fields.get("workers", 1)
        spec = WorkloadSpec(
            fields.pop("project", "vision"),
            name,
            fields.pop("user", "ana"),
            fields.pop("kind", "job"),
            fields.pop("command", self.command(on_term)),
            gpus=gpus,
            min_workers=fields.pop("min_workers", workers),
            **fields,
        )
        self.record_on_term(spec, on_term)
        return spec

    def session(self, name: str = "lab-ana", **fields: Any) -> WorkloadSpec:
        """Return a session with half a GPU; the test starts its process, as a spawner would."""
        fields = {"kind": "session", "command": None, "gpus": 0.5, "preemptible": False} | fields
        return self.job(name, **fields)

    async def until(self, workload: str, *states: str) -> WorkloadRecord:
        """Wait until a workload is in one of these states."""
        record = await self.cluster.workload(workload)
        async with asyncio.timeout(90):
            while record.state not in states:
                await self.nudge()
                if (now := await self.cluster.workload(workload)) == record:
                    now = await self.cluster.wait(workload, record)
                record = now
        return record

    async def until_deleted(self, workload: str) -> None:
        """Wait until the cluster has deleted a workload."""

        async def is_deleted() -> bool:
            await self.nudge()
            return workload not in {record.id for record in await self.cluster.workloads()}

        await eventually_async(is_deleted)

    async def started(self, *specs: WorkloadSpec, device: int = 0, share: float = 0) -> None:
        """Submit and start jobs on consecutive devices from `device` on; wait until they run."""
        await self.cluster.submit(specs)
        starts = []
        for spec in specs:
            count = -(-spec.gpus // 1000)
            for index in range(spec.workers):
                devices = range(device, device + count)
                part = share or min(spec.gpus, 1000) / 1000
                starts.append(start(spec.id, *devices, worker=index, share=part))
                device += count
        assert await self.cluster.apply(plan(*starts)) == []
        for spec in specs:
            if spec.command is not None:
                await self.until(spec.id, "running")
                await self.ready(spec)

    def command(self, on_term: int | str | None) -> tuple[str, ...]:
        """Return a program that the test can end."""
        raise NotImplementedError

    def record_on_term(self, spec: WorkloadSpec, on_term: int | str | None) -> None:
        """Record how a job answers SIGTERM."""

    async def ready(self, spec: WorkloadSpec) -> None:
        """Wait until a job's workers can be ended."""

    async def end(self, spec: WorkloadSpec, exit_code: int, *, worker: int = 0) -> None:
        """End a worker with an exit code."""
        raise NotImplementedError

    async def sees(self, spec: WorkloadSpec) -> tuple[list[str], bool]:
        """Return the devices that a job's program sees, and whether it is to resume."""
        variables = (await self.cluster.environment(spec.id)).variables
        devices = variables["CUDA_VISIBLE_DEVICES"].split(",")
        return devices, variables["RUNAI_RESUMED"] == "1"

    async def nudge(self) -> None:
        """Let stopping workers end."""

    async def report_status(
        self, spec: WorkloadSpec, state: str, *workers: int, gpus: int = 0, speed: float = 0
    ) -> None:
        """Let workers of an elastic job report a status; wait until their cluster has read it."""
        for index in workers:
            name = f"{spec.id}-{index}"
            # The pid is the test's own: a process outside the worker's session gets no signal.
            status = WorkerStatus(name, 0, WorkerPhase(state), os.getpid(), 0, speed, gpus)
            await self.write(spec, status)
            await self.until_status_read(spec, name, status)

    async def write(self, spec: WorkloadSpec, status: WorkerStatus) -> None:
        """Write a worker's status."""
        raise NotImplementedError

    async def until_status_read(self, spec: WorkloadSpec, name: str, status: WorkerStatus) -> None:
        """Wait until the cluster has read a worker's status."""

        async def is_read() -> bool:
            state = (await self.cluster.workload(spec.id)).elastic
            assert state is not None
            has = state.throughput.get(status.gpus, 0.0)
            return state.phases.get(name) is status.state and bool(has) >= bool(status.gpus)

        await eventually_async(is_read)

    async def pass_time(self, seconds: float) -> None:
        """Advance the cluster's clock by `seconds`."""
        self.clock.at += seconds
        self.cluster.apply_due_transitions()

    async def session_process(self) -> Process:
        """Return a process to attach."""
        raise NotImplementedError

    async def end_session(self, spec: WorkloadSpec) -> None:
        """End the process of a session."""
        raise NotImplementedError


def start(workload: str, *devices: int, worker: int = 0, share: float = 1) -> Start:
    """Return the decision to start a worker on devices of the lab's only node."""
    return Start(
        workload=workload,
        worker=f"{workload}-{worker}",
        node=NODE,
        devices=tuple(DeviceShare(device, milli_gpus(share)) for device in devices),
    )


def reserve(
    workload: str, *devices: int, worker: int = 0, waits_for: Sequence[str] = ()
) -> Reserve:
    """Return the decision to reserve devices for a worker."""
    return Reserve(
        workload=workload,
        worker=f"{workload}-{worker}",
        node=NODE,
        devices=tuple(DeviceShare(device, MilliGpu(1000)) for device in devices),
        waits_for=tuple(waits_for),
    )


def stop(workload: str, worker: int = 0) -> Stop:
    """Return the decision to stop a worker, with a reclaim as its reason."""
    text = f"nlp takes back what is its own, so {workload} pauses"
    reason = Reason(code="reclaimed", rule="R2", text=text, for_="nlp/pat-1")
    return Stop(workload=workload, worker=f"{workload}-{worker}", reason=reason)


MOVED = f"moved to {NODE} to make room for nlp/owner"
"""Reason of a move."""


def move(workload: str, *devices: int) -> Move:
    """Return the decision to move a job of one worker to these devices, for another job."""
    return Move(
        workload=workload,
        worker=f"{workload}-0",
        node=NODE,
        devices=tuple(DeviceShare(device, MilliGpu(1000)) for device in devices),
        reason=Reason(code="consolidated", rule="R10", text=MOVED, for_="nlp/owner"),
    )


def resize(workload: str, *devices: int, worker: int = 0, node: str = NODE) -> Resize:
    """Return the decision to restart a worker on these devices."""
    return Resize(
        workload=workload,
        worker=f"{workload}-{worker}",
        node=node,
        devices=tuple(DeviceShare(device, MilliGpu(1000)) for device in devices),
        reason=Reason(code="grown", rule="E2", text=f"takes {len(devices)} GPUs"),
    )


def plan(*decisions: Any) -> Plan:
    """Return a plan of these decisions."""
    return Plan(decisions=decisions)


class SimulatedLab(Lab):
    """A simulated cluster: database rows only."""

    kind = "simulated"

    def __init__(self) -> None:
        clock = Clock()
        self.simulated = simulated_cluster({NODE: DEVICES}, clock=clock)
        super().__init__(self.simulated, clock)
        self._on_term: dict[str, int | str | None] = {}

    def command(self, on_term: int | str | None) -> tuple[str, ...]:
        return ("train", str(on_term))

    def record_on_term(self, spec: WorkloadSpec, on_term: int | str | None) -> None:
        self._on_term[spec.id] = on_term

    async def end(self, spec: WorkloadSpec, exit_code: int, *, worker: int = 0) -> None:
        self.simulated.executor.complete(spec.id, exit_code, worker=worker)

    async def nudge(self) -> None:
        for record in await self.cluster.workloads():
            for worker in record.workers:
                if worker.state == "stopping":
                    code = self._on_term.get(record.id)
                    by_signal = -signal.SIGKILL if code == "ignore" else -signal.SIGTERM
                    self.simulated.executor.complete(
                        record.id,
                        code if isinstance(code, int) else by_signal,
                        worker=worker.index,
                    )

    async def write(self, spec: WorkloadSpec, status: WorkerStatus) -> None:
        self.cluster.report_statuses(spec.id, {status.worker: status})

    async def session_process(self) -> Process:
        return Process(4711, self.clock())

    async def end_session(self, spec: WorkloadSpec) -> None:
        self.simulated.executor.complete(spec.id, 0)


class LocalLab(Lab):
    """A local cluster: real processes, real files."""

    kind = "local"
    cluster: LocalCluster

    def __init__(self, cluster: LocalCluster, clock: Clock, place: Path) -> None:
        super().__init__(cluster, clock)
        self.place = place
        self._sessions: list[subprocess.Popen[bytes]] = []

    def command(self, on_term: int | str | None) -> tuple[str, ...]:
        answer = "" if on_term is None else str(on_term)
        return (sys.executable, "-I", "-S", "-c", OBEDIENT_JOB, str(self.place), answer)

    async def ready(self, spec: WorkloadSpec) -> None:
        if spec.command is not None and OBEDIENT_JOB in spec.command:
            for index in range(spec.workers):
                await eventually_async(self._orders(spec, index).exists)

    async def end(self, spec: WorkloadSpec, exit_code: int, *, worker: int = 0) -> None:
        def try_end() -> bool:
            try:
                fd = os.open(self._orders(spec, worker), os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # no process reads yet
                return False
            os.write(fd, f"{exit_code}\n".encode())
            os.close(fd)
            return True

        await eventually_async(try_end)

    async def write(self, spec: WorkloadSpec, status: WorkerStatus) -> None:
        directory = Path((await self.cluster.workload(spec.id)).checkpoint_dir).parent / "elastic"
        await eventually_async(directory.is_dir)
        ElasticFiles(directory).write_status(status)

    async def session_process(self) -> Process:
        self._sessions.append(sleeping())
        pid = self._sessions[-1].pid
        return lasting(Process(pid, psutil.Process(pid).create_time()))

    async def end_session(self, spec: WorkloadSpec) -> None:
        self._sessions[-1].terminate()

    def close(self) -> None:
        """End the remaining sessions."""
        for process in self._sessions:
            process.kill()
            process.wait()

    def _orders(self, spec: WorkloadSpec, worker: int) -> Path:
        return self.place / f"{spec.project}+{spec.name}-{worker}"


def sleeping() -> subprocess.Popen[bytes]:
    """Start a process that does nothing, as a spawner starts a server."""
    return subprocess.Popen(["sleep", "1000"], start_new_session=True)


@contextlib.asynccontextmanager
async def running(cluster: StoredCluster[Any]) -> AsyncGenerator[None]:
    """Run a cluster's background tasks; an error in them fails the test."""
    task = asyncio.ensure_future(cluster.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def decision_loop(cluster: LocalCluster) -> AsyncGenerator[None]:
    """Run a decision after every change until the end of the test."""
    control = asyncio.ensure_future(_control(cluster))
    try:
        yield
    finally:
        control.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await control


async def _control(cluster: LocalCluster) -> None:
    while True:
        await cluster.apply(decide(await cluster.observe()))
        await cluster.changed()


@contextlib.asynccontextmanager
async def local_lab(
    tmp_path: Path, clock: Clock | None = None, *, forget: bool = True, **options: Any
) -> AsyncGenerator[LocalLab]:
    """Open a cluster of real processes; `forget`: remove all its workloads at the end."""
    clock = clock or Clock()
    place = tmp_path / "orders"
    place.mkdir(exist_ok=True)
    async with (
        open_local_cluster(tmp_path / "data", DEVICES, NODE, clock=clock, **options) as cluster,
        running(cluster),
    ):
        lab = LocalLab(cluster, clock, place)
        try:
            yield lab
        except BaseException:
            forget = True
            raise
        finally:
            if forget:
                lab.close()
                # Pending workloads are only rows, which go with their file: an array has thousands.
                has = {"starting", "running", "stopping"}
                left = [r for r in await cluster.workloads() if has & {w.state for w in r.workers}]
                for record in left:
                    await cluster.delete(record.id, by="the test")
                for record in await cluster.workloads():
                    kill(record)
                await asyncio.gather(*(lab.until_deleted(record.id) for record in left))


def kill(record: WorkloadRecord) -> None:
    """Kill a workload's remaining processes."""
    for worker in record.workers:
        if worker.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGKILL)
