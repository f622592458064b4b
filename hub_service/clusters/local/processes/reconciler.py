"""Reconciler of worker processes with the rows: start, watch, stop, report exits.

Level-triggered: `_reconcile` compares the processes with the row and acts on the difference. So a
restart of the service needs nothing else: running workers are adopted, missed exits are read from
their files.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runai.hub_service.clusters.local.processes.attempt import Attempt, Instructions
from runai.hub_service.clusters.local.processes.process_watch import (
    ProcessWatch,
    end_tree,
    kill_leftovers,
    lasting,
)
from runai.hub_service.clusters.local.supervisor.supervisor import HOPELESS_AFTER_S
from runai.hub_service.clusters.local.supervisor.worker_start import NOT_NOW
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.model.records import (
    ACTIVE,
    Process,
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
)
from runai.hub_service.processes.session_end import LeftOver, SessionProcesses, end_session
from runai.hub_service.wire.errors import Unavailable

LOG = logging.getLogger("runai.reconciler")

POLL_STARTING_EVERY_S = 0.05
"""Seconds between checks of a starting supervisor of an earlier service (takes milliseconds)."""

RETRY_AFTER_S = 2.0
RETRY_END_AFTER_S = 30.0
NO_THREAD_TEXT = "can't start new thread"
"""Text of Python's RuntimeError."""

OVERDUE_S = HOPELESS_AFTER_S
"""Seconds that a supervisor needs at most after the grace. Later it may be stopped (SIGSTOP)."""


@dataclass(frozen=True, slots=True)
class ProcessControl:
    """Process functions of this machine; tests inject their own with a simulated clock."""

    attempt: Callable[[Path], Attempt] = Attempt
    watch: Callable[[int, Process | None, Callable[[], None]], ProcessWatch] = ProcessWatch
    lasting: Callable[[Process], Process] = lasting
    end_tree: Callable[[Process], None] = end_tree
    kill_leftovers: Callable[[str, str, float, Process | None], None] = kill_leftovers
    end_session: Callable[[SessionProcesses], Awaitable[Sequence[LeftOver]]] = end_session


THIS_MACHINE = ProcessControl()


class ReconcilerCluster(Protocol):
    """Cluster methods that the reconciler calls."""

    def row(self, workload: WorkloadId) -> WorkloadRecord | None:
        """Return a workload's desired state."""

    def prepare_start(
        self, row: WorkloadRecord, worker: WorkerRecord
    ) -> tuple[Instructions, Mapping[str, str]]:
        """Make a start's directories; return the supervisor's instructions, and the environment."""

    def prepare_account(self, row: WorkloadRecord, worker: WorkerRecord) -> bool:
        """Return True if a worker's account is known; else look it up and enqueue the workload."""

    def processes_of(self, row: WorkloadRecord, server: Process) -> SessionProcesses:
        """Return how the processes of a session are recognised, given its server."""

    def report_left_over(self, row: WorkloadRecord, left: Sequence[LeftOver]) -> None:
        """Store the processes that an ended session has left on its devices."""

    def report_running(self, workload: WorkloadId, index: int, process: Process) -> None:
        """Store a worker's running process."""

    def report_exit(self, workload: WorkloadId, index: int, exit_status: ExitStatus) -> None:
        """Apply the exit of a worker."""


@dataclass(frozen=True, slots=True)
class _Key:
    """One start of one worker."""

    workload: WorkloadId
    index: int
    attempt: int


@dataclass(slots=True)
class _WorkerHandle:
    """Handle of a running worker: the process of its supervisor, or of its session."""

    watch: ProcessWatch
    stop_sent: bool = False
    """True if it was told to stop."""
    status_fd: int = -1
    """Descriptor that reaches EOF when a started supervisor is up."""
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    poll_timer: asyncio.TimerHandle | None = None
    is_overdue: bool = False
    """True if it should have ended by now."""


class Reconciler:
    """Reconciler of all active workers' processes."""

    def __init__(
        self,
        jobs_dir: Path,
        cluster: ReconcilerCluster,
        clock: Callable[[], float],
        process_control: ProcessControl = THIS_MACHINE,
    ) -> None:
        """Start without handles."""
        self._process_control = process_control
        self._jobs_dir = jobs_dir
        self._cluster = cluster
        self._clock = clock
        self._handles: dict[_Key, _WorkerHandle] = {}
        self._session_ends: dict[_Key, asyncio.Task[None]] = {}
        """Ends of sessions' processes after their servers."""
        self._launched: set[_Key] = set()
        """Starts for which this service has launched a supervisor."""
        self._queue: asyncio.Queue[WorkloadId] = asyncio.Queue()

    def enqueue(self, workload: WorkloadId) -> None:
        """Enqueue a workload."""
        self._queue.put_nowait(workload)

    async def run(self) -> None:
        """Reconcile the queue, one workload after the other, until cancelled."""
        while True:
            workload = await self._queue.get()
            with self._requeue_on_failure(workload):
                await self._reconcile(workload)

    def stop_watching(self) -> None:
        """Stop watching; all workers keep running."""
        for key in list(self._handles):
            self._drop_handle(key)
        for task in self._session_ends.values():
            task.cancel()

    @contextlib.contextmanager
    def _requeue_on_failure(self, workload: WorkloadId) -> Iterator[None]:
        """Requeue a workload if the block cannot act now; reconciling is level-triggered.

        Nothing can be stored, or the machine has no descriptor, process or thread left.
        """
        retry_after = RETRY_AFTER_S
        try:
            yield
        except Unavailable as away:
            why, retry_after = away.message, away.retry_after
        except OSError as failed:
            if failed.errno not in NOT_NOW:
                raise
            why = str(failed.strerror)
        except RuntimeError as failed:
            why = str(failed)
            if why != NO_THREAD_TEXT:
                raise
        else:
            return
        LOG.warning("%s is reconciled later: %s", workload, why)
        asyncio.get_running_loop().call_later(retry_after, self.enqueue, workload)

    async def _reconcile(self, workload: WorkloadId) -> None:
        row = self._cluster.row(workload)
        for worker in row.active if row is not None else ():
            key = _Key(workload, worker.index, worker.attempt)
            # A sibling's reconciliation may have ended it, and other tasks run between the two.
            row, current = self._cluster.row(workload), self._current_worker(key)
            if row is None or current is None:
                continue
            if row.spec.command is None:
                self._reconcile_session(key, row, current)
            else:
                await self._reconcile_worker(key, row, current)
            await asyncio.sleep(0)  # each start takes a while: yield

    def _current_worker(self, key: _Key) -> WorkerRecord | None:
        """Return the worker of a start, if that is still the current one and active."""
        row = self._cluster.row(key.workload)
        worker = row.workers[key.index] if row is not None else None
        if worker is None or worker.attempt != key.attempt or worker.state not in ACTIVE:
            return None
        return worker

    # -- workers that the cluster starts ---------------------------------------------------------

    async def _reconcile_worker(self, key: _Key, row: WorkloadRecord, worker: WorkerRecord) -> None:
        """Adopt, watch or start a worker, or report its exit, by what its files show."""
        if key in self._handles:
            self._follow(key)
            return
        attempt = self._attempt(key)
        holder = attempt.holder()
        exit_status = attempt.final_exit()  # in this order: it may end between the two reads
        if exit_status is not None and holder is None:
            self._report_exit(key, exit_status)
        elif holder is not None:
            self._watch(key, holder)
            if attempt.holder() == holder:  # otherwise the PID may be reused by now
                self._follow(key)
            else:
                self._on_supervisor_exit(key)
        elif attempt.begun() or worker.state == "running" or key in self._launched:
            await asyncio.to_thread(
                self._process_control.kill_leftovers,
                worker.name,
                row.checkpoint_dir,
                worker.started or 0.0,
                worker.process,
            )
            self._report_exit(key, attempt.program_exit() or ExitStatus(None, lost=True))
        elif worker.state == "stopping":
            self._report_exit(key, ExitStatus(None, stop_requested=True))  # it was never started
        elif self._cluster.prepare_account(row, worker):
            self._launch(key, row, worker)

    def _launch(self, key: _Key, row: WorkloadRecord, worker: WorkerRecord) -> None:
        """Start a worker's supervisor and watch it, or report why it cannot start."""
        try:
            instructions, environment = self._cluster.prepare_start(row, worker)
            pid, status_fd = self._attempt(key).launch(instructions, environment)
        except OSError as failed:
            text = f"cannot start a supervisor: {failed.strerror}: {failed.filename}"
            if failed.errno in NOT_NOW:
                raise Unavailable(text, retry_after=RETRY_AFTER_S) from failed
            self._report_exit(key, ExitStatus(None, text=text))
            return
        self._launched.add(key)
        self._watch(key, pid)
        self._handles[key].status_fd = status_fd
        asyncio.get_running_loop().add_reader(status_fd, self._on_supervisor_up, key)

    def _on_supervisor_up(self, key: _Key) -> None:
        """Continue after a supervisor closed its status pipe: its worker runs or cannot start."""
        self._close_status(self._handles[key])
        with self._requeue_on_failure(key.workload):
            self._follow(key)

    def _follow(self, key: _Key) -> None:
        """Report a running worker, and forward a stop once its supervisor handles signals."""
        handle, attempt = self._handles[key], self._attempt(key)
        row, worker = self._cluster.row(key.workload), self._current_worker(key)
        if row is None or worker is None:
            return
        loop = asyncio.get_running_loop()
        if worker.state == "stopping" and not handle.timers and attempt.begun():
            # Also for a worker that is stopped before its start was reported.
            overdue_after_s = row.spec.grace_seconds + OVERDUE_S
            handle.timers.append(loop.call_later(overdue_after_s, self._on_overdue, key))
        if handle.status_fd >= 0:
            return
        process = worker.process or attempt.process()
        if process is not None and worker.process is None:
            attempt.forget_environment()
            lasting_process = self._process_control.lasting(process)
            self._cluster.report_running(key.workload, key.index, lasting_process)
        if worker.state == "stopping" and not handle.stop_sent and attempt.begun():
            handle.stop_sent = True
            handle.watch.send(signal.SIGTERM)
        if process is None:
            handle.poll_timer = loop.call_later(POLL_STARTING_EVERY_S, self.enqueue, key.workload)

    def _on_overdue(self, key: _Key) -> None:
        """Kill an overdue worker, since its supervisor may have been stopped by the worker.

        A supervisor that waits for disk space, or for processes that survive SIGKILL, is not
        disturbed.
        """
        handle, loop = self._handles[key], asyncio.get_running_loop()
        if not handle.is_overdue:
            handle.is_overdue = True
            LOG.warning("%s is overdue: all its processes are killed", key.workload)
        handle.timers = [loop.call_later(OVERDUE_S, self._on_overdue, key)]
        loop.run_in_executor(None, self._attempt(key).kill_processes)

    def _watch(self, key: _Key, pid: int) -> None:
        self._handles[key] = _WorkerHandle(
            self._process_control.watch(pid, None, lambda: self._on_supervisor_exit(key))
        )

    def _on_supervisor_exit(self, key: _Key) -> None:
        self._drop_handle(key)
        self.enqueue(key.workload)  # its files have the exit

    def _report_exit(self, key: _Key, exit_status: ExitStatus) -> None:
        self._drop_handle(key)
        self._launched.discard(key)
        if self._current_worker(key) is not None:
            self._attempt(key).forget_environment()
            self._cluster.report_exit(key.workload, key.index, exit_status)

    def _drop_handle(self, key: _Key) -> None:
        """Forget a start's handle: its watch, status pipe and timers."""
        handle = self._handles.pop(key, None)
        if handle is not None:
            self._close_status(handle)
            handle.watch.close()
            for timer in [*handle.timers, *([handle.poll_timer] if handle.poll_timer else [])]:
                timer.cancel()

    def _close_status(self, handle: _WorkerHandle) -> None:
        if handle.status_fd >= 0:
            asyncio.get_running_loop().remove_reader(handle.status_fd)
            os.close(handle.status_fd)
            handle.status_fd = -1

    def _attempt(self, key: _Key) -> Attempt:
        return self.attempt(key.workload, key.index, key.attempt)

    def attempt(self, workload: WorkloadId, index: int, attempt: int) -> Attempt:
        """Return one start of one worker."""
        job = self._jobs_dir / workload  # project/name, both DNS labels
        return self._process_control.attempt(job / f"attempt-{attempt}" / f"worker-{index}")

    # -- sessions that a spawner starts ----------------------------------------------------------

    def _reconcile_session(self, key: _Key, row: WorkloadRecord, worker: WorkerRecord) -> None:
        """Watch a session's server; stop it when the row says so, and kill it after the grace."""
        process = worker.process
        if process is None or key in self._session_ends:
            return
        if key not in self._handles:
            watch = self._process_control.watch(
                process.pid, process, lambda: self._on_session_exit(key)
            )
            self._handles[key] = _WorkerHandle(watch)
        handle = self._handles[key]
        if worker.state == "stopping" and not handle.stop_sent:
            handle.stop_sent = True
            handle.watch.send(signal.SIGTERM)
            since = row.stopping_since if row.stopping_since is not None else self._clock()
            grace = float(row.spec.grace_seconds)
            # Bounded by the whole grace, if the clock was set back since.
            left = max(0.0, min(grace, since + grace - self._clock()))
            loop = asyncio.get_running_loop()
            handle.timers.append(loop.call_later(left, self._process_control.end_tree, process))

    def _on_session_exit(self, key: _Key) -> None:
        """End what the session's server has left; only then its devices are free."""
        self._drop_handle(key)
        self._session_ends[key] = asyncio.get_running_loop().create_task(self._end_session(key))

    async def _end_session(self, key: _Key) -> None:
        """End the processes of a session, then report its exit; retry later after an error."""
        row, worker = self._cluster.row(key.workload), self._current_worker(key)
        try:
            with self._requeue_on_failure(key.workload):
                if row is not None and worker is not None and worker.process is not None:
                    session = self._cluster.processes_of(row, worker.process)
                    left = await self._process_control.end_session(session)
                    self._cluster.report_left_over(row, left)
                self._report_exit(key, ExitStatus(None))
        except Exception:
            LOG.exception("the end of session %s failed; it is tried again", key.workload)
            asyncio.get_running_loop().call_later(RETRY_END_AFTER_S, self.enqueue, key.workload)
        finally:
            del self._session_ends[key]
