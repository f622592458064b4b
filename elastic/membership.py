"""A worker's membership in an elastic job: the cluster's target, and the worker's status.

Standard library only; `listen` installs signal handlers, an import none.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from runai.hub_service.processes.per_process import CreatorProcess
from runai.hub_service.wire.elastic_messages import (
    ElasticFiles,
    MessageError,
    Reason,
    Target,
    WorkerPhase,
    WorkerStatus,
)

LEAVE_EXIT_CODE = 143
"""Exit code of a worker that left before the training was finished; 0: finished."""

_REPORT_EVERY_S = 1.0
# Each status replaces a file of 200 bytes, in 0.1 ms.


class StopRequest:
    """A worker's stop request: by SIGTERM, or by the death of its launcher.

    The second SIGTERM ends the process at once. A forked child of the worker, such as a pool's
    process, is no worker: its signals do what they did before `listen`.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Read the launcher's pid from the environment; install no handler yet."""
        launcher = environ.get("RUNAI_LAUNCHER_PID", "")
        self._launcher = os.getppid() if launcher == str(os.getppid()) else None
        self._sigterm_received = False
        self._previous_handlers: dict[int, Any] = {}
        self._worker = CreatorProcess()

    @property
    def is_requested(self) -> bool:
        """True after the first SIGTERM, and after the launcher's death; never in a child."""
        return self._worker.is_current and (
            self._sigterm_received
            or (self._launcher is not None and os.getppid() != self._launcher)
        )

    def listen(self) -> None:
        """Install handlers of SIGTERM and SIGUSR1, which then call the previous handlers.

        Outside of the main thread, where Python allows no handlers, only the launcher is watched.
        """
        if self._previous_handlers or threading.current_thread() is not threading.main_thread():
            return
        self._previous_handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._on_sigterm)
        # The default of SIGUSR1 ends the process. Its arrival alone interrupts a sleep; the target
        # file is read after each update anyway, since shells may not forward signals.
        self._previous_handlers[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._on_sigusr1)

    def close(self) -> None:
        """Restore the previous handlers; ignore SIGUSR1 if its default would end the process."""
        ours = (self._on_sigterm, self._on_sigusr1)
        for number, previous in self._previous_handlers.items():
            if signal.getsignal(number) in ours:
                previous = signal.SIG_DFL if previous is None else previous  # noqa: PLW2901
                ends_process = number == signal.SIGUSR1 and previous is signal.SIG_DFL
                signal.signal(number, signal.SIG_IGN if ends_process else previous)
        self._previous_handlers.clear()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Record the first SIGTERM; exit at the second."""
        if self._worker.delegate_signal(self._previous_handlers.get(number), number):
            return
        if self._sigterm_received:
            raise SystemExit(LEAVE_EXIT_CODE)
        self._sigterm_received = True
        self._call_previous(number, frame)

    def _on_sigusr1(self, number: int, frame: FrameType | None) -> None:
        """Let the signal interrupt a sleep; it needs no other action."""
        if not self._worker.delegate_signal(self._previous_handlers.get(number), number):
            self._call_previous(number, frame)

    def _call_previous(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous_handlers.get(number)
        if callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)


class Membership:
    """One worker's membership: reads the cluster's target, writes the worker's status."""

    def __init__(
        self, directory: Path, worker: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Name the job's directory and this worker; `clock` gives seconds."""
        self.files = ElasticFiles(directory)
        self.worker = worker
        self.gen = 0
        """Current generation of this worker; 0 before the first."""
        self._short_name = worker.rpartition("/")[2]
        self._clock = clock
        self._file_version: tuple[int, int, int] | None = None
        self._target: Target | None = None
        self._ended_pause_gen = -1
        self._reported_at = float("-inf")
        self._status = WorkerStatus(worker, 0, WorkerPhase.STARTING, os.getpid())
        self._speed_origin: tuple[float, int] | None = None  # time and samples
        self._batch_and_steps = (0, 0)
        self._process = CreatorProcess()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Membership | None:
        """Read `RUNAI_ELASTIC_DIR` and `RUNAI_WORKER`; return None for a job of fixed size.

        Raises:
            ValueError: if only the directory is set.
        """
        directory, worker = environ.get("RUNAI_ELASTIC_DIR"), environ.get("RUNAI_WORKER")
        if not directory:
            return None
        if not worker:
            raise ValueError(
                f"RUNAI_ELASTIC_DIR is {directory}, but RUNAI_WORKER does not say which worker "
                "this is: unset the first, or set both."
            )
        return cls(Path(directory), worker)

    @property
    def target(self) -> Target | None:
        """The newest target read."""
        return self._target

    def read_target(self) -> Target | None:
        """Return the newest target; read its file only after a replacement (8 µs).

        An invalid file is ignored: the cluster will write another one.
        """
        try:
            file_status = os.stat(self.files.target_path)  # noqa: PTH116 - twice as fast as Path.stat
        except OSError:
            return self._target
        version = (file_status.st_ino, file_status.st_mtime_ns, file_status.st_size)
        if version != self._file_version:
            with contextlib.suppress(MessageError, OSError):
                target = self.files.target()
                if target is not None and (self._target is None or target.gen > self._target.gen):
                    if self._target is None and target.reason is Reason.PAUSE:
                        self._ended_pause_gen = target.gen
                    self._target = target
                self._file_version = version
        return self._target

    def rank_in(self, target: Target) -> int | None:
        """Return this worker's rank in a target; None if it must leave or wait."""
        names = [rank.rpartition("/")[2] for rank in target.ranks]
        return names.index(self._short_name) if self._short_name in names else None

    def is_excluded_by(self, target: Target) -> bool:
        """Return True if a target requires this worker to leave.

        A pause older than this worker is over, as the cluster has started the worker since.
        """
        if target.reason is Reason.PAUSE:
            return target.gen > self._ended_pause_gen
        return 0 < self.gen < target.gen and self.rank_in(target) is None

    def report(self, state: WorkerPhase, update: int = -1) -> None:
        """Write this worker's status now; `update` -1 repeats the last."""
        update = self._status.update if update < 0 else update
        speed = (self._status.samples_per_s, self._status.gpus)
        self._write_status(state, update, *speed)

    def progress(
        self, update: int, samples: int, gpus: int, *, global_batch: int = 0, steps: int = 0
    ) -> None:
        """Write progress and speed of the training, at most once a second.

        Args:
            update: updates of the weights so far.
            samples: samples of the whole job so far; only differences count.
            gpus: over all ranks. A change restarts the measurement.
            global_batch: samples of an update, over all ranks; for display.
            steps: micro-batches of an update on each rank; for display.
        """
        self._batch_and_steps = (global_batch, steps)
        now = self._clock()
        if self._speed_origin is None or gpus != self._status.gpus:
            self._speed_origin = (now, samples)
            self._write_status(WorkerPhase.RUNNING, update, 0.0, gpus)
        elif now - self._reported_at >= _REPORT_EVERY_S:
            since, before = self._speed_origin
            speed = (samples - before) / (now - since) if now > since else 0.0
            self._write_status(WorkerPhase.RUNNING, update, round(speed, 3), gpus)
            # Average over at most 40 s: steady, but a slow start does not dominate.
            if now - since > 40.0:
                self._speed_origin = (now, samples)

    def forget_speed(self) -> None:
        """Restart the measurement of the speed, as after a pause."""
        self._speed_origin = None

    def _write_status(self, state: WorkerPhase, update: int, speed: float, gpus: int) -> None:
        """Write the status to the job's directory, and remember it."""
        if not self._process.is_current:
            return  # a child of the worker is none itself
        self._status = WorkerStatus(
            self.worker, self.gen, state, os.getpid(), update, speed, gpus, *self._batch_and_steps
        )
        self._reported_at = self._clock()
        # A full disk must not end a training: the status is for display and for growth.
        with contextlib.suppress(OSError):
            self.files.write_status(self._status)
