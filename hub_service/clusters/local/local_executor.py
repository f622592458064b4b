"""Executor of this machine: workers under detached supervisors.

It decides about directories, accounts and supervisors' instructions. Workers outlive the service.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeAlias

import psutil

from runai.hub_service.clusters.local.data_dir_checks import JOBS
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
from runai.hub_service.clusters.local.processes.aside_jobs import AsideJobs
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
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.clusters.states.code_changes import expected_files
from runai.hub_service.clusters.states.outcomes import is_examined
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.clusters.workloads.agent_allocations import AgentAllocations
from runai.hub_service.clusters.workloads.stored_cluster import StoredCluster
from runai.hub_service.clusters.workloads.timetable import Timetable
from runai.hub_service.clusters.workloads.worker_environment import (
    elastic_dir,
    worker_environment,
)
from runai.hub_service.limits.sharing import Sharing, TimeSliced
from runai.hub_service.model.cluster import LogChunk
from runai.hub_service.model.device import Device
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import (
    ACTIVE,
    SOURCE_PLACEHOLDER,
    Allocation,
    Process,
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
from runai.hub_service.wire.errors import NotFound

LOG = logging.getLogger("runai.service")

OWN_DIR = ".local/share/runai"
"""Directory of a user's job files, in the home of their own account."""

FOLLOW_EVERY_S = 0.2
"""Seconds between reads of a followed log while its workload runs."""


LocalCluster: TypeAlias = "StoredCluster[LocalExecutor]"


class LocalExecutor:
    """Workers as processes of this machine, under detached supervisors."""

    def __init__(
        self,
        cluster: LocalCluster,
        data_dir: Path,
        store: SqliteStore,
        node_name: str,
        *,
        accounts: AccountDirectory | None = None,
        api_url: str = "",
        sharing: Sharing | None = None,
        job_files: int = 0,
        open_files: int = 0,
        requests: RequestGroups | None = None,
        clock: Callable[[], float] = time.time,
        process_control: ProcessControl = THIS_MACHINE,
    ) -> None:
        """Use `local_cluster.open_local_cluster` instead."""
        self._cluster = cluster
        self._data_dir = data_dir
        self._node_name = node_name
        self._api_url = api_url
        self._sharing = sharing or TimeSliced()
        self._clock = clock
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
            aside = AsideJobs(cluster, self._accounts, self.report_exit, clock)
            self._start_accounts = StartAccounts(accounts, aside, self._reconciler.enqueue, clock)
        self._reported_faults: dict[str, str] = {}
        self._left_over = LeftOverProcesses(data_dir / LEFT_OVER, self._set_faults)
        self._checkpoint_answers = CheckpointAnswers(cluster, self._reconciler.attempt)
        self._code_answers = CodeAnswers(cluster, self._reconciler.attempt)
        self._elastic_relay = ElasticRelay(cluster, self.elastic_dir)
        self._progress_files = ProgressFiles()
        self._allocations = AgentAllocations()
        self._cleanup = JobDirCleanup(data_dir / JOBS)
        self._cleanup.settle(self._is_stored)
        self._tmp_dirs = TmpDirs(data_dir, for_all=accounts is not None)
        self._timetable = Timetable(cluster.apply_due_transitions, clock)

    async def run(self) -> NoReturn:
        """Run the background tasks until cancelled; adopt running workers first."""
        rows = list(self._cluster.index.values())
        self._tmp_dirs.sweep(_tmp_name(row) for row in rows if row.active)
        for row in rows:
            if self._requests is not None:  # the unit's stop has disabled the controllers
                for worker in row.active:
                    self._requests.enforce_request(worker.name, row.spec)
            self.act(row)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._timetable.run())
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

    # -- calls of the cluster --------------------------------------------------------------------

    def act(self, row: WorkloadRecord) -> None:
        """Enqueue a row; the target is written before a leaving worker's SIGTERM."""
        if row.elastic is not None:
            self._elastic_relay.publish_target(row)
        if row.active:
            self._reconciler.enqueue(row.id)
        self._checkpoint_answers.enqueue(row)
        self._code_answers.enqueue(row)
        self._timetable.announce()

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
        self._timetable.announce()

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

    async def check(self, spec: WorkloadSpec) -> None:
        """Check that the user's account answers now, and is the same person's as before."""
        if self._directory is not None:
            await self._directory.account(spec.user)

    def free_port(self) -> int:
        """Return an unused port."""
        return later_port()

    def recognised(self, row: WorkloadRecord, process: Process) -> Process:
        """Return a session's process as it is recorded."""
        process = self._process_control.lasting(process)
        known = row.workers[0].process
        return known if known is not None and is_same(known, process) else process

    def adopt(self, row: WorkloadRecord, process: Process) -> None:
        """Hold a session's process to its requests."""
        if self._requests is not None:
            self._requests.adopt(row.workers[0].name, row.spec, process)

    def faults(self, reported: Mapping[str, str]) -> Mapping[str, str]:
        """Return the faults of devices: a reported one, else processes that are left over there."""
        self._reported_faults |= reported
        return self._faults_of(reported)

    def _set_faults(self, devices: Collection[str]) -> None:
        self._cluster.set_faults(self._node_name, self._faults_of(devices))

    def _faults_of(self, devices: Collection[str]) -> dict[str, str]:
        reported, left = self._reported_faults, self._left_over.fault
        return {uuid: reported.get(uuid) or left(uuid) for uuid in devices}

    def allocations(
        self, node: str, devices: Sequence[Device], rows: Iterable[WorkloadRecord]
    ) -> Sequence[Allocation]:
        """Return the workers that run or stop, with process start times by the present clock."""
        booted = psutil.boot_time()
        convert = partial(at_present_clock, booted=booted)
        return self._allocations.on_node(node, devices, rows, booted=booted, convert=convert)

    async def logs(
        self,
        record: WorkloadRecord,
        *,
        worker: int | None,
        tail: int | None,
        follow: bool,
        parts: bool = False,
    ) -> AsyncGenerator[LogChunk]:
        """Yield the workers' output of all attempts; `follow` continues until the end."""
        workload, uid = record.id, record.uid
        job = self._job_dir(record.spec)
        logs = [WorkerLog(job, index, parts=parts) for index in chosen_workers(record, worker)]
        for log in logs:
            if not follow:
                await asyncio.to_thread(log.end_here)
            if tail is not None:
                await asyncio.to_thread(log.skip_to_last, tail)
        while (current := self._cluster.current_record(workload, uid)) is not None:
            # A workload that finished before this read has written everything.
            for log in logs:
                while True:
                    chunk = await asyncio.to_thread(log.next_chunk)
                    if self._cluster.current_record(workload, uid) is None:
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
        started_jobs = list(self._cluster.index.started_jobs(only))
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
                await self._cluster.wait(workload, seen)

    # -- calls of the reconciler -----------------------------------------------------------------

    def row(self, workload: WorkloadId) -> WorkloadRecord | None:
        """Return a workload's desired state."""
        return self._cluster.row(workload)

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
        variables = self.variables(row, worker, self._cluster.nodes.get(worker.node, ()))
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

    def variables(
        self, row: WorkloadRecord, worker: WorkerRecord, devices: Sequence[Device]
    ) -> dict[str, str]:
        """Return a worker's environment, with its workload's own TMPDIR unless it has another.

        The TMPDIR of a session is made with it.
        """
        if row.spec.command is None:
            try:
                self._make_tmp_dir(row, self._accounts.of(row))
            except OSError as failed:  # its user can make room in a notebook
                LOG.warning("%s has no TMPDIR of its own: %s", row.id, failed)
        environment = worker_environment(
            row,
            worker,
            devices,
            api_url=self._api_url,
            sharing=self._sharing,
            enforced=self._requests is not None,
        )
        if not _chooses_tmp_dir(row.spec):
            environment.pop("TMPDIR", None)
            if (own := self._tmp_dirs.find(_tmp_name(row))) is not None:
                environment["TMPDIR"] = str(own)
        return environment

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
        devices = self._cluster.nodes.get(worker.node, ())
        self._left_over.add(row.id, [devices[s.device].uuid for s in worker.devices], left)

    def report_running(self, workload: WorkloadId, index: int, process: Process) -> None:
        """Record a worker's running process."""
        self._cluster.report_running(workload, index, process)

    def report_exit(self, workload: WorkloadId, index: int, exit_status: ExitStatus) -> None:
        """Record a worker's exit, then remove its control group and the last one's TMPDIR."""
        row = self._cluster.index[workload]
        worker = row.workers[index].name
        if self._requests is not None:
            exit_status = self._requests.explain_exit(worker, row.spec, exit_status)
        if self._start_accounts is None:
            exit_status = replace(exit_status, is_home_away=False)  # the platform makes the homes
        elif exit_status.is_home_away:
            self._start_accounts.wait_for([row.spec.user])
        self._cluster.report_exit(workload, index, exit_status)
        if self._requests is not None:
            self._requests.remove(worker)
        if (after := self._cluster.index.row(workload)) is None or not after.active:
            self._tmp_dirs.remove(_tmp_name(row))

    def _is_stored(self, workload: WorkloadId, submitted: float) -> bool:
        """Return True if the row of this very workload is stored."""
        row = self._cluster.index.get(workload)
        return row is not None and row.submitted == submitted

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
