"""Launcher of an elastic job's workers on one machine, without the platform.

It starts processes and writes targets in the platform's protocol (`elastic_messages`); `resize`
decides the next generation. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from runai.elastic.job_directory import JobDirectory
from runai.elastic.membership import LEAVE_EXIT_CODE
from runai.elastic.resize import LiveWorker, plan_ranks
from runai.hub_service.wire.elastic_messages import Reason, Target, WorkerPhase, WorkerStatus

_POLL_EVERY_S = 0.05
_LEFT_CODES = (LEAVE_EXIT_CODE, -signal.SIGTERM)


@dataclass
class _Worker:
    name: str
    slot: int
    """Its local rank: the device that it uses."""
    process: subprocess.Popen[bytes]
    terminating: bool = False
    signal_at: float = field(default=float("inf"))
    signals_sent: int = 0


class Launcher:
    """The launcher of one job: runs its workers until it is finished, paused or failed."""

    def __init__(
        self,
        command: Sequence[str],
        directory: JobDirectory,
        *,
        min_workers: int,
        max_workers: int,
        report_progress: Callable[[str], None],
        restarts: int = 3,
        grace_s: float = 60.0,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Configure `min_workers` to `max_workers` workers of `command`; start none yet.

        Args:
            command: of one worker.
            directory: of this job, with target, statuses and, by default, checkpoints.
            min_workers: fewest workers that train.
            max_workers: most workers that are started.
            report_progress: prints a line of progress.
            restarts: failures that are tolerated without an update in between.
            grace_s: seconds for a leaving worker until SIGTERM, and again until SIGKILL.
            environ: base of the workers' environment.
        """
        self._command, self._directory = list(command), directory
        self._report_progress = report_progress
        self._min_workers, self._max_workers = min_workers, max_workers
        self._desired_workers = max_workers
        self._restarts, self._grace_s = restarts, grace_s
        self._environ = dict(environ)
        self._workers: list[_Worker] = []
        self._statuses: dict[str, WorkerStatus] = {}
        self._ranks: tuple[str, ...] = ()
        self._gen = self._started_count = self._failures = 0
        self._failed_at_update = -1
        self._pause_requests = self._pause_requests_handled = 0
        self._exit_code: int | None = None

    def run(self) -> int:
        """Train until the end; return the exit code: 0 finished, 143 paused, else the failure's.

        Raises:
            DirectoryTaken: if another launcher runs this job.
        """
        self._gen = self._directory.acquire()
        while self._poll():
            time.sleep(_POLL_EVERY_S)
        return self._exit_code or 0

    def pause(self) -> None:
        """Stop all workers after their update, with a checkpoint; a second call sends signals."""
        self._pause_requests += 1

    def _poll(self) -> bool:
        """Handle exits, pauses and requests once; return False at the end."""
        self._statuses = self._directory.files.statuses()
        self._reap_exited()
        if self._pause_requests and self._exit_code is None:
            self._exit_code = LEAVE_EXIT_CODE
            self._report_progress("pausing: the workers leave after their update")
            self._start_generation((), Reason.PAUSE)
        if self._exit_code is not None:
            self._stop_workers(self._workers)
            self._signal_overdue()
            return bool(self._workers)
        requested = self._directory.requested_workers(self._min_workers, self._max_workers)
        desired = requested or self._desired_workers
        if desired != self._desired_workers:
            message = f"{desired} workers are wanted instead of {self._desired_workers}"
            self._report_progress(message)
            self._desired_workers = desired
        self._start_missing()
        self._update_ranks()
        self._signal_overdue()
        return True

    def _start_missing(self) -> None:
        """Start workers up to the desired number, each on the first free slot."""
        staying = sum(not worker.terminating for worker in self._workers)
        for _ in range(self._desired_workers - staying):
            name, self._started_count = f"w{self._started_count}", self._started_count + 1
            used_slots = {worker.slot for worker in self._workers}
            slot = next(slot for slot in range(len(used_slots) + 1) if slot not in used_slots)
            # A session of its own: Ctrl-C reaches the launcher only, which pauses the job.
            process = subprocess.Popen(  # noqa: S603 - the user's command
                self._command,
                env=self._environ | self._environ_of(name, slot),
                start_new_session=True,
                pass_fds=self._directory.inherited,
            )
            self._workers.append(_Worker(name, slot, process))
            self._report_progress(f"{name} started: process {process.pid}")

    def _environ_of(self, name: str, slot: int) -> dict[str, str]:
        """Return the variables that tell a worker its name, directory and device."""
        checkpoints = str(self._directory.path / "checkpoints")
        return {
            "RUNAI_ELASTIC_DIR": str(self._directory.path),
            "RUNAI_WORKER": name,
            "RUNAI_LAUNCHER_PID": str(os.getpid()),
            "RUNAI_CHECKPOINT_DIR": self._environ.get("RUNAI_CHECKPOINT_DIR") or checkpoints,
            # As set by torchrun; the target of each generation assigns the actual ranks.
            "RANK": str(slot),
            "LOCAL_RANK": str(slot),
            "WORLD_SIZE": str(self._desired_workers),
            "LOCAL_WORLD_SIZE": str(self._desired_workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self._environ.get("MASTER_PORT") or str(_free_port()),
        }

    def _update_ranks(self) -> None:
        """Start the next generation if the ranks change; stop surplus workers."""
        live_workers = [
            LiveWorker(worker.name, self._is_ready(worker), worker.terminating)
            for worker in self._workers
        ]
        next_ranks = plan_ranks(self._ranks, live_workers, self._desired_workers, self._min_workers)
        if next_ranks is not None:
            reason = Reason.RECLAIM if len(next_ranks) < len(self._ranks) else Reason.EXPAND
            self._start_generation(next_ranks, reason if self._ranks else Reason.START)
        staying = [worker for worker in self._workers if not worker.terminating]
        unranked = [worker for worker in staying if worker.name not in self._ranks]
        self._stop_workers(unranked[max(0, self._desired_workers - len(staying) + len(unranked)) :])

    def _is_ready(self, worker: _Worker) -> bool:
        status = self._statuses.get(worker.name)
        return status is not None and status.state in (WorkerPhase.READY, WorkerPhase.RUNNING)

    def _start_generation(self, ranks: tuple[str, ...], reason: Reason) -> None:
        """Write the target of a new generation; removed workers get their grace time."""
        self._gen += 1
        deadline = ""
        if len(ranks) < len(self._ranks):
            deadline_time = datetime.now(UTC) + timedelta(seconds=self._grace_s)
            deadline = deadline_time.isoformat(timespec="seconds")
        self._directory.files.write_target(
            Target(
                self._gen,
                ranks,
                f"127.0.0.1:{_free_port()}",
                gpus=len(ranks),
                least=self._min_workers,
                most=self._max_workers,
                reason=reason,
                deadline=deadline,
            )
        )
        for worker in self._workers:
            if worker.name in self._ranks and worker.name not in ranks:
                self._mark_terminating(worker)
        self._ranks = ranks
        self._report_progress(f"generation {self._gen}: {' '.join(ranks) or 'nobody'} ({reason})")

    # ---- leaving workers

    def _mark_terminating(self, worker: _Worker) -> None:
        if not worker.terminating:
            worker.terminating, worker.signal_at = True, time.monotonic() + self._grace_s

    def _stop_workers(self, workers: Iterable[_Worker]) -> None:
        """Stop workers: idle ones at once, training ones after their update or at their end."""
        for worker in workers:
            status = self._statuses.get(worker.name)
            trains = status is not None and status.state is WorkerPhase.RUNNING
            # A final evaluation may take long; a script without statuses ends by itself.
            if self._exit_code == 0 and (trains or not self._statuses):
                continue
            if not (worker.terminating or trains):
                worker.signal_at = 0.0
                worker.terminating = True
            self._mark_terminating(worker)

    def _signal_overdue(self) -> None:
        """Send SIGTERM to workers after their grace time, and SIGKILL after a second one."""
        is_pause_repeated = self._pause_requests > max(1, self._pause_requests_handled)
        self._pause_requests_handled = self._pause_requests
        for worker in self._workers:
            is_overdue = is_pause_repeated or time.monotonic() > worker.signal_at
            if not worker.terminating or not is_overdue:
                continue
            signal_number = signal.SIGTERM if worker.signals_sent == 0 else signal.SIGKILL
            worker.signals_sent += 1
            worker.signal_at = time.monotonic() + self._grace_s
            # Kill its process group: data loader processes hold memory, too.
            with contextlib.suppress(ProcessLookupError):
                if signal_number == signal.SIGTERM:
                    worker.process.terminate()
                else:
                    os.killpg(worker.process.pid, signal_number)

    def _reap_exited(self) -> None:
        """Handle workers that exited, and mark those that leave by themselves."""
        for worker in list(self._workers):
            status = self._statuses.get(worker.name)
            if status is not None and status.state is WorkerPhase.DRAINING:
                self._mark_terminating(worker)
            code = worker.process.poll()
            if code is not None:
                self._workers.remove(worker)
                self._handle_exit(worker, code)

    def _handle_exit(self, worker: _Worker, code: int) -> None:
        """Set the job's exit code, or what follows: a smaller job or a restart."""
        if code == 0:
            if self._exit_code in (None, LEAVE_EXIT_CODE):
                self._exit_code = 0
            self._report_progress(f"{worker.name} finished")
        elif code in _LEFT_CODES:
            self._report_progress(f"{worker.name} left")
            was_external = worker.name in self._ranks and not worker.signals_sent
            if was_external and self._exit_code is None:
                # An external SIGTERM: another program needs its device.
                self._desired_workers = max(self._min_workers, self._desired_workers - 1)
        elif self._exit_code in (None, 0) and not worker.signals_sent:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._report_progress(f"{worker.name} failed: {how}")
            code = code if code > 0 else 128 - code
            if self._exit_code is None:
                self._count_failure(code)
            else:
                self._exit_code = code

    def _count_failure(self, code: int) -> None:
        """Count a failure without an update since the last; end the job after too many."""
        update = max((status.update for status in self._statuses.values()), default=0)
        self._failures = self._failures + 1 if update <= self._failed_at_update else 1
        self._failed_at_update = update
        if self._failures > self._restarts:
            self._exit_code = code
            self._report_progress(
                f"{self._failures} failures without an update in between: no more restarts "
                "(--restarts); what a worker wrote last says why"
            )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
