"""This machine as a cluster: rows in SQLite, workers under detached supervisors.

Knows what to do for each worker that a row says is active: start it, watch it, stop it, learn how
it ended. It does so by looking at what is (`tend`), so a restart of the service needs nothing else:
running workers are adopted, exits that nobody saw are read from their files. Rows and rules are
`recorded`'s.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self
from uuid import uuid4

from runai.hub_service.agent.devices import Device
from runai.hub_service.clusters.environment import worker_environment
from runai.hub_service.clusters.lifecycle import ACTIVE, Ending, Row
from runai.hub_service.clusters.local.account import Account, account_of
from runai.hub_service.clusters.local.attempt import Attempt, Instructions
from runai.hub_service.clusters.local.processes import Watch, end_tree, kill_leftovers
from runai.hub_service.clusters.local.store import SqliteStore, sole_owner
from runai.hub_service.clusters.recorded import RecordedCluster
from runai.hub_service.clusters.records import (
    SOURCE_PLACEHOLDER,
    WorkerEnvironment,
    WorkerRecord,
    WorkloadId,
    WorkloadSpec,
)
from runai.hub_service.errors import Conflict, NotFound

__all__ = ["LocalCluster"]

LOOK_AGAIN_S = 0.05
"""While a supervisor that an earlier service started is just coming up (milliseconds)."""


@dataclass(frozen=True, slots=True)
class _Key:
    """One start of one worker."""

    workload: WorkloadId
    index: int
    attempt: int


@dataclass(slots=True)
class _Keeper:
    """What we hold of a running worker: its supervisor's, or its session's, process."""

    watch: Watch
    told: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


class LocalCluster(RecordedCluster):
    """Workloads as processes of this machine."""

    def __init__(
        self,
        data_dir: Path,
        store: SqliteStore,
        devices: Sequence[Device],
        node_name: str,
        *,
        system_users: bool = False,
        api_url: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Use `open` instead: it makes sure that nobody else does this on the same directory."""
        super().__init__(store, {node_name: devices}, clock=clock)
        self._data_dir = data_dir
        self._node = node_name
        self._system_users = system_users
        self._api_url = api_url
        self._keepers: dict[_Key, _Keeper] = {}
        self._status_fds: dict[_Key, int] = {}
        self._to_tend: asyncio.Queue[WorkloadId] = asyncio.Queue()
        self._to_remove: asyncio.Queue[Path] = asyncio.Queue()
        self._timetable_changed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        data_dir: Path | str,
        devices: Sequence[Device],
        node_name: str,
        *,
        system_users: bool = False,
        api_url: str = "",
        clock: Callable[[], float] = time.time,
    ) -> AsyncGenerator[Self]:
        """Open the cluster of a data directory, waiting for another service that has it open.

        Leaving stops watching and closes the files; what runs goes on running.
        """
        data_dir = _made(Path(data_dir))
        async with sole_owner(data_dir / "cluster.lock"):
            store = SqliteStore(data_dir / "cluster.sqlite")
            try:
                cluster = cls(
                    data_dir,
                    store,
                    devices,
                    node_name,
                    system_users=system_users,
                    api_url=api_url,
                    clock=clock,
                )
                try:
                    yield cluster
                finally:
                    cluster.let_go()
            finally:
                store.close()

    async def run(self) -> NoReturn:
        """Own the background work until cancelled; adopts what runs first."""
        for row in list(self._rows.values()):
            self.act(row)
        for path in self._trash.glob("*"):
            self._to_remove.put_nowait(path)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_time())
            tasks.create_task(self._remove_trash())
            while True:
                await self._tend(await self._to_tend.get())

    def let_go(self) -> None:
        """Stop watching; every worker goes on."""
        for keeper in self._keepers.values():
            keeper.watch.close()
            for timer in keeper.timers:
                timer.cancel()
        self._keepers.clear()
        for key in list(self._status_fds):
            self._close_status(key)

    # -- what `recorded` asks for ----------------------------------------------------------------

    def act(self, row: Row) -> None:
        """Have the row tended to soon."""
        if row.active:
            self._to_tend.put_nowait(row.id)
        self._timetable_changed.set()

    def forget(self, row: Row) -> None:
        """Put a workload's directory aside, so that its name is free at once."""
        self._timetable_changed.set()
        path = self._job_dir(row.spec)
        if path.exists():
            self._trash.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside = self._trash / uuid4().hex
            path.rename(aside)
            self._to_remove.put_nowait(aside)

    def directories(self, spec: WorkloadSpec, now: float) -> tuple[str, str]:
        """Return where the checkpoints and the logs of a workload are to be kept."""
        del now
        job = self._job_dir(spec)
        return str(job / "checkpoints"), str(job)

    def free_port(self) -> int:
        """Return a port that nobody listens on now."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    async def environment(self, workload: WorkloadId, worker: int = 0) -> WorkerEnvironment:
        """Return what hands a worker its devices (a spawner starts the session with it)."""
        row = self._row(workload)
        if not 0 <= worker < len(row.record.workers):
            raise NotFound(f"{workload} has no worker {worker}.")
        held = row.record.workers[worker]
        if held.state not in ACTIVE:
            raise Conflict(
                f"{workload} holds no GPUs now ({row.record.state}).", code="no_allocation"
            )
        variables = worker_environment(
            row, held, self._nodes.get(held.node, ()), api_url=self._api_url
        )
        return WorkerEnvironment(variables, row.spec.workdir)

    # -- tending ---------------------------------------------------------------------------------

    async def _tend(self, workload: WorkloadId) -> None:
        """Bring what runs nearer to what the row says; may be called at any time, and again."""
        row = self._rows.get(workload)
        if row is None:
            return
        for worker in row.active:
            key = _Key(workload, worker.index, worker.attempt)
            if row.spec.command is None:
                self._tend_session(key, row, worker)
            else:
                await self._tend_worker(key, worker)

    def _worker(self, key: _Key) -> WorkerRecord | None:
        """Return the worker if this start of it is still the current one and not over."""
        row = self._rows.get(key.workload)
        worker = row.record.workers[key.index] if row is not None else None
        if worker is None or worker.attempt != key.attempt or worker.state not in ACTIVE:
            return None
        return worker

    async def _tend_worker(self, key: _Key, worker: WorkerRecord) -> None:
        attempt = self._attempt(key)
        if key not in self._keepers:
            ending = attempt.ending()
            holder = attempt.holder()
            if ending is None and holder is None:
                ending = attempt.ending()  # it may have ended between the two looks
            if ending is not None:
                self._over(key, ending)
                return
            if holder is not None:
                self._watch(key, holder)
            elif attempt.begun() or worker.state == "running":
                await self._lost(key, worker)
                return
            elif worker.state == "stopping":
                self._over(key, Ending(None, told=True))  # it was never started
                return
            else:
                self._launch(key)
                return
        self._follow_start(key, attempt)

    def _follow_start(self, key: _Key, attempt: Attempt) -> None:
        """Note that the worker runs, and pass on that it is to stop, once somebody listens."""
        keeper = self._keepers[key]
        worker = self._worker(key)
        if worker is None or key in self._status_fds:
            return
        if worker.process is None and (process := attempt.process()) is not None:
            attempt.forget_environment()
            self.report_running(key.workload, key.index, process)
        if worker.state == "stopping" and not keeper.told and attempt.begun():
            keeper.told = True
            keeper.watch.send(signal.SIGTERM)
        if not attempt.begun() or (worker.process is None and attempt.process() is None):
            again = asyncio.get_running_loop().call_later(
                LOOK_AGAIN_S, self._to_tend.put_nowait, key.workload
            )
            keeper.timers = [again]

    def _launch(self, key: _Key) -> None:
        row = self._rows[key.workload]
        worker = row.record.workers[key.index]
        spec = row.spec
        try:
            account = account_of(spec.user, self._data_dir, system_users=self._system_users)
        except NotFound as refused:
            self._over(key, Ending(None, text=refused.message))
            return
        instructions = self._instructions(row, account)
        environment = account.environment() | worker_environment(
            row, worker, self._nodes.get(worker.node, ()), api_url=self._api_url
        )
        try:
            pid, status = self._attempt(key).launch(instructions, environment)
        except OSError as failed:
            text = f"cannot start a supervisor: {failed.strerror}: {failed.filename}"
            self._over(key, Ending(None, text=text))
            return
        self._status_fds[key] = status
        asyncio.get_running_loop().add_reader(status, self._is_up, key)
        self._watch(key, pid)

    def _instructions(self, row: Row, account: Account) -> Instructions:
        spec = row.spec
        assert spec.command is not None
        job = self._job_dir(spec)
        source = str(job / "source.py")
        directories = [str(account.home)] if account.uid is None else []
        directories.append(row.record.checkpoint_dir)
        return Instructions(
            command=[source if part == SOURCE_PLACEHOLDER else part for part in spec.command],
            workdir=spec.workdir or str(account.home),
            grace_seconds=spec.grace_seconds,
            uid=account.uid,
            gid=account.gid,
            user=account.user,
            directories=directories,
            files={source: spec.source} if spec.source else {},
        )

    def _is_up(self, key: _Key) -> None:
        """Go on: a supervisor has closed its status pipe, its worker runs or could not start."""
        self._close_status(key)
        if key in self._keepers:
            self._follow_start(key, self._attempt(key))

    def _watch(self, key: _Key, pid: int) -> None:
        self._keepers[key] = _Keeper(Watch(pid, None, lambda: self._supervisor_ended(key)))

    def _supervisor_ended(self, key: _Key) -> None:
        self._drop(key)
        self._to_tend.put_nowait(key.workload)  # its files say how

    async def _lost(self, key: _Key, worker: WorkerRecord) -> None:
        began = worker.started or 0.0
        await asyncio.to_thread(kill_leftovers, worker.name, began)
        self._over(key, Ending(None, lost=True))

    def _over(self, key: _Key, ending: Ending) -> None:
        self._drop(key)
        self._attempt(key).forget_environment()
        if self._worker(key) is not None:
            self.report_exit(key.workload, key.index, ending)

    def _drop(self, key: _Key) -> None:
        self._close_status(key)
        keeper = self._keepers.pop(key, None)
        if keeper is not None:
            keeper.watch.close()
            for timer in keeper.timers:
                timer.cancel()

    def _close_status(self, key: _Key) -> None:
        fd = self._status_fds.pop(key, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    # -- sessions that somebody else starts ------------------------------------------------------

    def _tend_session(self, key: _Key, row: Row, worker: WorkerRecord) -> None:
        process = worker.process
        if process is None:
            return
        if key not in self._keepers:
            watch = Watch(process.pid, process.created, lambda: self._over(key, Ending(None)))
            self._keepers[key] = _Keeper(watch)
        keeper = self._keepers[key]
        if worker.state == "stopping" and not keeper.told:
            keeper.told = True
            keeper.watch.send(signal.SIGTERM)
            since = row.stopping_since if row.stopping_since is not None else self._clock()
            left = max(0.0, since + row.spec.grace_seconds - self._clock())
            loop = asyncio.get_running_loop()
            keeper.timers.append(loop.call_later(left, end_tree, process))

    # -- time and directories --------------------------------------------------------------------

    async def _keep_time(self) -> NoReturn:
        while True:
            self._timetable_changed.clear()
            when = self.report_time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if when is None else max(0, when - self._clock())):
                    await self._timetable_changed.wait()

    async def _remove_trash(self) -> NoReturn:
        while True:
            path = await self._to_remove.get()
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    @property
    def _trash(self) -> Path:
        return self._data_dir / "jobs" / ".trash"

    def _job_dir(self, spec: WorkloadSpec) -> Path:
        return self._data_dir / "jobs" / spec.project / spec.name

    def _attempt(self, key: _Key) -> Attempt:
        job = self._data_dir / "jobs" / key.workload  # project/name, both DNS labels
        return Attempt(job / f"attempt-{key.attempt}" / f"worker-{key.index}")


def _made(data_dir: Path) -> Path:
    data_dir = data_dir.absolute()
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return data_dir
