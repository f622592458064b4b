"""Cluster of this machine: rows in SQLite, workers under detached supervisors.

It decides about directories, accounts and supervisors' instructions. Workers outlive the service.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, Self

import psutil

from runai.hub_service.clusters.local.data_dir_checks import (
    JOBS,
    adapt_to_node,
    check_place,
    make_data_dir,
    moved_rows,
)
from runai.hub_service.clusters.local.files.elastic_dir import ElasticDir
from runai.hub_service.clusters.local.files.elastic_relay import ElasticRelay
from runai.hub_service.clusters.local.files.job_dir_cleanup import (
    CHECKPOINTS,
    DeletedWorkload,
    HomeJobDir,
    JobDirCleanup,
)
from runai.hub_service.clusters.local.files.progress_files import ProgressFile, ProgressFiles
from runai.hub_service.clusters.local.files.worker_log import WorkerLog, chosen_workers
from runai.hub_service.clusters.local.processes.attempt import Instructions
from runai.hub_service.clusters.local.processes.attempt_answers import (
    CheckpointAnswers,
    CodeAnswers,
)
from runai.hub_service.clusters.local.processes.job_accounts import JobAccounts
from runai.hub_service.clusters.local.processes.left_over_processes import (
    LEFT_OVER,
    LeftOverProcesses,
)
from runai.hub_service.clusters.local.processes.process_watch import at_present_clock, is_same
from runai.hub_service.clusters.local.processes.reconciler import (
    THIS_MACHINE,
    ProcessControl,
    Reconciler,
)
from runai.hub_service.clusters.local.processes.request_groups import RequestGroups
from runai.hub_service.clusters.local.processes.start_accounts import StartAccounts
from runai.hub_service.clusters.local.store.cluster_lock import LOCK, sole_owner
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.clusters.states.code_changes import expected_files
from runai.hub_service.clusters.states.outcomes import is_examined
from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.clusters.workloads.stored_cluster import StoredCluster
from runai.hub_service.clusters.workloads.worker_environment import elastic_dir
from runai.hub_service.limits.sharing import Sharing
from runai.hub_service.model.cluster import LogChunk
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import (
    ACTIVE,
    SOURCE_PLACEHOLDER,
    Allocation,
    ElasticRules,
    Process,
    WorkerEnvironment,
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.processes.accounts import account_limits
from runai.hub_service.processes.accounts.account_directory import AccountDirectory
from runai.hub_service.processes.accounts.submission_environment import job_environment
from runai.hub_service.processes.accounts.umask import USUAL
from runai.hub_service.processes.ports import later_port
from runai.hub_service.processes.program_files import named_files
from runai.hub_service.processes.session_end import LeftOver, SessionProcesses
from runai.hub_service.processes.tmp_dirs import TmpDirs, is_in_tmp_dir
from runai.hub_service.processes.user_account import UnixAccount
from runai.hub_service.wire.errors import NotFound, Unavailable

LOG = logging.getLogger("runai.service")

UNBOUNDED = NodeCapacity()
OWN_DIR = ".local/share/runai"
"""Directory of a user's job files, in the home of their own account."""

FOLLOW_EVERY_S = 0.2
"""Seconds between reads of a followed log while its workload runs."""


class LocalCluster(StoredCluster):
    """Workloads as processes of this machine."""

    def __init__(
        self,
        data_dir: Path,
        store: SqliteStore,
        devices: Sequence[Device],
        node_name: str,
        *,
        accounts: AccountDirectory | None = None,
        api_url: str = "",
        sharing: Sharing | None = None,
        elastic: ElasticRules | None = None,
        retention: RetentionPolicy | None = None,
        job_files: int = 0,
        open_files: int = 0,
        capacity: NodeCapacity = UNBOUNDED,
        requests: RequestGroups | None = None,
        clock: Callable[[], float] = time.time,
        process_control: ProcessControl = THIS_MACHINE,
    ) -> None:
        """Use `open` instead: it locks the data directory against a second service."""
        super().__init__(
            store,
            {node_name: devices},
            capacities={node_name: capacity},
            api_url=api_url,
            sharing=sharing,
            elastic=elastic,
            retention=retention,
            enforced=requests is not None,
            clock=clock,
        )
        self._data_dir = data_dir
        for row in list(self._index.values()):
            self._index[row.id] = adapt_to_node(row, node_name, len(devices))
        self._directory = accounts
        self._accounts = JobAccounts(data_dir, accounts)
        self._job_files = job_files
        self._open_files = open_files
        self._requests = requests
        self._process_control = process_control
        self._sqlite = store
        self._reconciler = Reconciler(data_dir / JOBS, self, clock, process_control)
        self._start_accounts: StartAccounts | None = None
        if accounts is not None:
            self._start_accounts = StartAccounts(accounts, self, self._reconciler.enqueue, clock)
        self._reported_faults: dict[str, str] = {}
        set_faults = partial(self._set_faults, node_name)
        self._left_over = LeftOverProcesses(data_dir / LEFT_OVER, set_faults)
        self._checkpoint_answers = CheckpointAnswers(self, self._reconciler.attempt)
        self._code_answers = CodeAnswers(self, self._reconciler.attempt)
        self._elastic_relay = ElasticRelay(self)
        self._progress_files = ProgressFiles()
        self._cleanup = JobDirCleanup(data_dir / JOBS)
        self._cleanup.settle(self._is_stored)
        self._tmp_dirs = TmpDirs(data_dir, for_all=accounts is not None)
        self._timetable_changed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        data_dir: Path | str,
        devices: Sequence[Device],
        node_name: str,
        *,
        accounts: AccountDirectory | None = None,
        api_url: str = "",
        sharing: Sharing | None = None,
        elastic: ElasticRules | None = None,
        retention: RetentionPolicy | None = None,
        job_files: int = 0,
        open_files: int = 0,
        capacity: NodeCapacity = UNBOUNDED,
        requests: RequestGroups | None = None,
        clock: Callable[[], float] = time.time,
    ) -> AsyncGenerator[Self]:
        """Open the cluster of a data directory; wait while another service has it open.

        Workers run as the users' Unix `accounts`; None: all as the platform's account.
        A job may have `job_files` files in its own directory; 0: no limit. It starts with a limit
        of `open_files` descriptors; 0: the service's. Workloads request their CPU and memory out of
        `capacity`; `requests` holds them to it, None leaves them free. On exit, watching stops and
        files are closed; workers keep running.
        """
        data_dir = make_data_dir(Path(data_dir))
        check_place(data_dir)
        async with sole_owner(data_dir / LOCK):
            with closing(SqliteStore(data_dir / "cluster.sqlite")) as store:
                if moved := moved_rows(store.rows(), data_dir):
                    store.replace(moved)
                cluster = cls(
                    data_dir,
                    store,
                    devices,
                    node_name,
                    accounts=accounts,
                    api_url=api_url,
                    sharing=sharing,
                    elastic=elastic,
                    retention=retention,
                    job_files=job_files,
                    open_files=open_files,
                    capacity=capacity,
                    requests=requests,
                    clock=clock,
                )
                try:
                    yield cluster
                finally:
                    cluster.stop_watching()

    async def run(self) -> NoReturn:
        """Run the background tasks until cancelled; adopt running workers first."""
        rows = list(self._index.values())
        self._tmp_dirs.sweep(_tmp_name(row) for row in rows if row.active)
        for row in rows:
            if self._requests is not None:  # the unit's stop has disabled the controllers
                for worker in row.active:
                    self._requests.enforce_request(worker.name, row.spec)
            self.act(row)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_timers())
            tasks.create_task(self._cleanup.run())
            tasks.create_task(self._elastic_relay.run())
            tasks.create_task(self._checkpoint_answers.run())
            tasks.create_task(self._code_answers.run())
            tasks.create_task(self._left_over.run())
            if self._start_accounts is not None:
                users = [row.spec.user for row in rows if row.is_set_aside]
                self._start_accounts.wait_for(users)
                tasks.create_task(self._start_accounts.run())
            await self._reconciler.run()
        raise AssertionError

    def unhealthy_reason(self) -> str:
        """Return why the last write failed; "" if it succeeded."""
        return self._sqlite.unhealthy_reason()

    def stop_watching(self) -> None:
        """Stop watching; all workers keep running."""
        self._reconciler.stop_watching()

    # -- callbacks of StoredCluster --------------------------------------------------------------

    def act(self, row: WorkloadRecord) -> None:
        """Enqueue a row; the target is written before a leaving worker's SIGTERM."""
        if row.elastic is not None:
            self._elastic_relay.publish_target(row)
        if row.active:
            self._reconciler.enqueue(row.id)
        self._checkpoint_answers.enqueue(row)
        self._code_answers.enqueue(row)
        self._timetable_changed.set()

    @contextlib.contextmanager
    def forgetting(self, row: WorkloadRecord, *, aged: bool = False) -> Iterator[None]:
        """Remove a deleted workload's directory; the checkpoints of an `aged` one stay."""
        home = self._home_dir(row)
        deleted = DeletedWorkload(row.id, row.submitted, aged, skips_home=home is None)
        with self._cleanup.removal(deleted, home):
            yield
        self._tmp_dirs.remove(_tmp_name(row))
        self._elastic_relay.drop(row.id)
        if self._start_accounts is not None:
            self._start_accounts.forget(row.id)
        self._timetable_changed.set()

    def _home_dir(self, row: WorkloadRecord) -> HomeJobDir | None:
        """Return a workload's directory in its user's home; None: there is none, or it stays."""
        own, owner = _own_dir(row), self._accounts.removal_account(row)
        return HomeJobDir(own, owner) if owner and not own.is_relative_to(self._data_dir) else None

    def directories(self, spec: WorkloadSpec, now: float) -> tuple[str, str]:
        """Return the paths for a workload's checkpoints and logs.

        Users with accounts of their own cannot enter the service's directory: their checkpoints are
        in their homes, in a folder that a later workload of the same name does not get.
        """
        job = own = self._job_dir(spec)
        if (known := self._accounts.known(spec.user)) is not None:
            own = Path(known.home) / OWN_DIR / spec.project / f"{spec.name}-{int(now)}"
        return str(own / CHECKPOINTS), str(job)

    def account_uid(self, user: str) -> int | None:
        """Return the Unix uid by which a user is known; None: workers run as the platform."""
        known = self._accounts.known(user)
        return None if known is None else known.uid

    def belongs_to_former_user(self, row: WorkloadRecord) -> bool:
        """Return True if a workload has a uid that is no more the person's by whose name it is."""
        return self._accounts.belongs_to_former_user(row)

    async def submit(self, specs: Sequence[WorkloadSpec]) -> Sequence[WorkloadRecord]:
        """Store new workloads of a user whose account answers now.

        Raises:
            NotFound: there is no such account.
            Forbidden: it is another person's now.
            Unavailable: it does not answer.
        """
        if self._directory is not None:
            for user in {spec.user for spec in specs}:
                await self._directory.account(user)
        return await super().submit(specs)

    async def resume(self, workload: WorkloadId, *, by: str, uid: str = "") -> WorkloadRecord:
        """Put a suspended job back into the queue, unless its user is another person now."""
        if self._directory is not None:
            for user in {self._index[row_id].spec.user for row_id in self._index.row_ids(workload)}:
                with contextlib.suppress(NotFound, Unavailable):  # it waits in the queue
                    await self._directory.account(user)
        return await super().resume(workload, by=by, uid=uid)

    def free_port(self) -> int:
        """Return an unused port."""
        return later_port()

    async def attach(
        self, workload: WorkloadId, process: Process, *, uid: str = ""
    ) -> WorkloadRecord:
        """Attach the process of a session that a spawner started."""
        process = self._process_control.lasting(process)
        known = self._row(self._checked_id(workload, uid)).workers[0]
        if known.process is not None and is_same(known.process, process):
            process = known.process
        attached = await super().attach(workload, process, uid=uid)
        if self._requests is not None:
            self._requests.adopt(known.name, attached.spec, process)
        return attached

    async def note_faults(self, node: str, faults: Mapping[str, str]) -> None:
        """Take devices out of use for these reasons, and for processes that are left over there."""
        self._reported_faults |= faults
        self._set_faults(node, faults)

    def _set_faults(self, node: str, devices: Collection[str]) -> None:
        """Set the faults of these devices: a reported one, else processes that are left over."""
        reported, left = self._reported_faults, self._left_over.fault
        self.set_faults(node, {uuid: reported.get(uuid) or left(uuid) for uuid in devices})

    async def allocations(self, node: str) -> Sequence[Allocation]:
        """Return the workers that run or stop, with process start times by the present clock."""
        booted = psutil.boot_time()
        devices = self._nodes.get(node, ())
        convert = partial(at_present_clock, booted=booted)
        rows = self._index.active_rows()
        return self._allocations.on_node(node, devices, rows, booted=booted, convert=convert)

    async def logs(
        self,
        workload: WorkloadId,
        *,
        worker: int | None,
        tail: int | None,
        follow: bool,
        parts: bool = False,
        uid: str = "",
    ) -> AsyncIterator[LogChunk]:
        """Yield the workers' output of all attempts; `follow` continues until the end."""
        record = self._single_row(self._checked_id(workload, uid))
        job = self._job_dir(record.spec)
        logs = [WorkerLog(job, index, parts=parts) for index in chosen_workers(record, worker)]
        for log in logs:
            if not follow:
                await asyncio.to_thread(log.end_here)
            if tail is not None:
                await asyncio.to_thread(log.skip_to_last, tail)
        uid = record.uid
        while (current := self._current_record(workload, uid)) is not None:
            # A workload that finished before this read has written everything.
            for log in logs:
                while True:
                    chunk = await asyncio.to_thread(log.next_chunk)
                    if self._current_record(workload, uid) is None:
                        return  # what was read may be a later workload's: it has the directory
                    if chunk is None:
                        break
                    yield chunk
            if current.state.finished or not follow:
                break
            with contextlib.suppress(NotFound):  # deleted while it is followed
                await self._wait_for_output(workload, current)
        for log in logs:
            while (chunk := log.rest()) is not None:
                yield chunk

    async def progress(
        self, only: Collection[WorkloadId] | None = None
    ) -> Mapping[WorkloadId, Progress]:
        """Return the last progress that each job reported; `only` limits the jobs.

        A progress file is read again only if it may have changed.
        """
        started_jobs = list(self._index.started_jobs(only))
        files = [
            ProgressFile(row.id, Path(row.checkpoint_dir), self._accounts.of(row).uid, phase)
            for row in started_jobs
            if (phase := _run_phase(row))[-1] or not self._progress_files.is_cached(row.id, phase)
        ]
        names = {row.id for row in started_jobs}
        read = self._progress_files.poll if only is None else self._progress_files.read
        # At rest, files were read before: no thread, which would wait for the interpreter's lock.
        return await asyncio.to_thread(read, files, names) if files else read((), names)

    async def _wait_for_output(self, workload: WorkloadId, seen: WorkloadRecord) -> None:
        """Return when there may be more output: soon if it runs, else at a change."""
        runs = any(worker.state in ACTIVE for worker in seen.workers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FOLLOW_EVERY_S if runs else None):
                await self.wait(workload, seen)

    # -- callbacks of the reconciler ---------------------------------------------------------------

    def row(self, workload: WorkloadId) -> WorkloadRecord | None:
        """Return a workload's desired state."""
        return self._index.get(workload)

    def elastic_dir(self, row: WorkloadRecord) -> ElasticDir:
        """Return the directory that an elastic job's workers share with the service."""
        return ElasticDir(Path(elastic_dir(row)), self._accounts.of(row).uid)

    def prepare_account(self, row: WorkloadRecord, worker: WorkerRecord) -> bool:
        """Return True if a worker's account is known; else look it up and enqueue the workload."""
        accounts = self._start_accounts
        return accounts is None or accounts.find_or_look_up(row, worker.attempt) is not None

    def prepare_start(
        self, row: WorkloadRecord, worker: WorkerRecord
    ) -> tuple[Instructions, Mapping[str, str]]:
        """Make a start's TMPDIR; return its supervisor's instructions and the environment."""
        self._sqlite.check_is_there()  # a start would make the directories anew
        spec = row.spec
        assert spec.command is not None
        account = self._accounts.of(row)
        if self._start_accounts is not None:
            start_account = self._start_accounts.find_or_look_up(row, worker.attempt)
            assert start_account is not None, "prepare_account returned False"
            account = start_account
        own = _own_dir(row)
        source = str(own / "source.py")
        directories = [str(account.home)] if account.uid is None else []
        # The parent folders have the names of projects and jobs.
        directories += map(str, (own.parent.parent, own.parent, own, row.checkpoint_dir))
        if spec.elastic:
            shared = self.elastic_dir(row)
            shared.forget_status(worker.name)  # a status of an earlier start
            directories += [str(shared.path), str(shared.path / "status")]
        tmp_dir = self._make_tmp_dir(row, account)
        variables = self.variables(row, worker)
        command_files = named_files(spec.command)
        is_first = worker.index == min(w.index for w in row.active if w.attempt == worker.attempt)
        environment, python = job_environment(account.environment(), variables, spec.inherited)
        instructions = Instructions(
            command=[source if part == SOURCE_PLACEHOLDER else part for part in spec.command],
            workdir=spec.workdir or str(account.home),
            grace_seconds=spec.grace_seconds,
            uid=account.uid,
            gid=account.gid,
            groups=account.groups,
            user=account.user,
            home=str(account.home),
            umask=int(spec.umask or USUAL, 8),
            directories=directories,
            files={source: spec.source} if spec.source else {},
            own_directory=str(own),
            checkpoint_dir=row.checkpoint_dir if is_examined(row) else "",
            code=command_files if is_first else None,
            path=environment["PATH"],
            expected=[name for name in expected_files(row) if name in command_files],
            most_files=self._job_files,
            open_files=self._open_files,
            pam_service=account_limits.SERVICE if account.uid is not None else "",
            tmp_dir=str(tmp_dir or ""),
            group=self._requests.enforce_request(worker.name, spec)
            if self._requests is not None
            else "",
            python=python,
        )
        return instructions, environment

    def variables(self, row: WorkloadRecord, worker: WorkerRecord) -> dict[str, str]:
        """Return a worker's environment, with its workload's own TMPDIR unless it has another."""
        environment = super().variables(row, worker)
        if not _chooses_tmp_dir(row.spec):
            environment.pop("TMPDIR", None)
            if (own := self._tmp_dirs.find(_tmp_name(row))) is not None:
                environment["TMPDIR"] = str(own)
        return environment

    async def environment(
        self, workload: WorkloadId, worker: int = 0, *, uid: str = ""
    ) -> WorkerEnvironment:
        """Return a running worker's environment; the TMPDIR of a session is made with it."""
        row = self._index.row(workload)
        if row is not None and row.active and row.spec.command is None:
            try:
                self._make_tmp_dir(row, self._accounts.of(row))
            except OSError as failed:  # its user can make room in a notebook
                LOG.warning("%s has no TMPDIR of its own: %s", workload, failed)
        return await super().environment(workload, worker, uid=uid)

    def _make_tmp_dir(self, row: WorkloadRecord, account: UnixAccount) -> Path | None:
        """Make a workload's own TMPDIR; None: its spec has another one."""
        if _chooses_tmp_dir(row.spec):
            return None
        return self._tmp_dirs.make(_tmp_name(row), account.uid, account.gid)

    def processes_of(self, row: WorkloadRecord, server: Process) -> SessionProcesses:
        """Return how the processes of a session are recognised, given its server."""
        uid = self._accounts.of_processes(row).uid
        groups, name = self._requests, row.workers[0].name
        in_group = partial(groups.is_in_group, name) if groups is not None else lambda _pid: None
        own = os.geteuid() if uid is None else uid
        return SessionProcesses(row.uid, at_present_clock(server).created, own, in_group)

    def report_left_over(self, row: WorkloadRecord, left: Sequence[LeftOver]) -> None:
        """Take the devices of an ended session out of use while processes are left over there."""
        [worker] = row.workers
        devices = self._nodes.get(worker.node, ())
        self._left_over.add(row.id, [devices[s.device].uuid for s in worker.devices], left)

    def report_exit(self, workload: WorkloadId, index: int, exit_status: ExitStatus) -> None:
        """Record a worker's exit, then remove its control group and the last one's TMPDIR."""
        row = self._row(workload)
        worker = row.workers[index].name
        if self._requests is not None:
            exit_status = self._requests.explain_exit(worker, row.spec, exit_status)
        if self._start_accounts is None:
            exit_status = replace(exit_status, is_home_away=False)  # the platform makes the homes
        elif exit_status.is_home_away:
            self._start_accounts.wait_for([row.spec.user])
        super().report_exit(workload, index, exit_status)
        if self._requests is not None:
            self._requests.remove(worker)
        if (after := self._index.row(workload)) is None or not after.active:
            self._tmp_dirs.remove(_tmp_name(row))

    def _current_record(self, workload: WorkloadId, uid: str) -> WorkloadRecord | None:
        """Return the record of a workload; None if it is gone, also if another has its name."""
        record = self._index.record(workload)
        return record if record is not None and record.uid == uid else None

    def _is_stored(self, workload: WorkloadId, submitted: float) -> bool:
        """Return True if the row of this very workload is stored."""
        row = self._index.get(workload)
        return row is not None and row.submitted == submitted

    # -- time and directories --------------------------------------------------------------------

    async def _run_timers(self) -> NoReturn:
        """Apply transitions as they are due, until cancelled."""
        while True:
            self._timetable_changed.clear()
            try:
                when = self.apply_due_transitions()
            except Unavailable as away:
                when = self._clock() + away.retry_after
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if when is None else max(0, when - self._clock())):
                    await self._timetable_changed.wait()
            await asyncio.sleep(0)  # yield: there may be thousands to delete

    def _job_dir(self, spec: WorkloadSpec) -> Path:
        return self._data_dir / JOBS / spec.project / spec.name


def _run_phase(row: WorkloadRecord) -> tuple[float, int, bool]:
    """Return a value that changes at each start and end; its last item: it runs."""
    return row.submitted, row.attempts, bool(row.active)


def _own_dir(row: WorkloadRecord) -> Path:
    """Return the directory of a workload that its user may write to."""
    return Path(row.checkpoint_dir).parent


def _tmp_name(row: WorkloadRecord) -> str:
    """Return the name by which a workload's TMPDIR is found; an array's elements have one uid."""
    return f"{row.id} {row.uid}"


def _chooses_tmp_dir(spec: WorkloadSpec) -> bool:
    """Return True if a TMPDIR was given with a job; that of another one came along by itself."""
    return "TMPDIR" in spec.env and not is_in_tmp_dir(spec.env["TMPDIR"])
