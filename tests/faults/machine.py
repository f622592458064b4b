"""A machine in virtual time: its processes outlive the service, and double runs are recorded.

Replaces files, supervisors and pidfds (`reconciler.ProcessControl`); everything above them is the
real code. A start of a worker is identified by its directory, as on a real machine.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from faults.virtual_time import WallClock
from runai.hub_service.clusters.local.processes import reconciler
from runai.hub_service.clusters.local.processes.attempt import Instructions
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.model.records import Code, Process
from runai.hub_service.processes.session_end import LeftOver, SessionProcesses

FIRST_PID = 1000


@dataclass
class Work:
    """Duration and behaviour of one worker's program."""

    seconds: float
    fails: int = 0
    """Number of starts that end with exit code 1."""
    obeys: bool = True
    """True if it ends on SIGTERM; else it is killed at the end of its grace period."""
    alone: bool = True
    """True for a job of one worker; a finished worker of a gang may have to start again."""
    done: float = 0.0
    succeeded: bool = False


@dataclass
class Start:
    """One start of a worker: its directory, supervisor and process."""

    place: Path
    holder: int | None = None
    begun: bool = False
    process: Process | None = None
    program_exit_status: ExitStatus | None = None
    """Exit status of the program, set before its leftover processes are gone too."""
    exit_status: ExitStatus | None = None
    stop_requested: bool = False
    grace_s: float = 30.0
    worker: str = ""
    devices: tuple[tuple[str, int], ...] = ()
    """UUID and milli-GPU of each device in its environment."""
    since: float = 0.0
    deferred: list[Callable[[], object]] | None = None
    """Actions that a stopped supervisor runs when it goes on; None if it is not stopped."""


@dataclass
class Machine:
    """Processes and a queue of timed events; `attach` sets the event loop that drives them."""

    clock: WallClock
    dice: random.Random
    work: dict[str, Work] = field(default_factory=dict)
    starts: dict[Path, Start] = field(default_factory=dict)
    sessions: dict[int, Process] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pids = itertools.count(FIRST_PID)
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._kills_at_next_end = False
        """True if the next supervisor is killed between its worker's end and its report."""
        self._launching: set[int] = set()
        """PIDs of supervisors that have no lock yet."""
        self._watchers: dict[int, list[Callable[[], None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- time ------------------------------------------------------------------------------------

    def attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Set the loop that drives the events; None while the service is down."""
        self._loop = loop
        self._watchers = {}
        for at, _, _ in self._due if loop is not None else ():
            assert loop is not None
            loop.call_at(at, self.catch_up)

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        """Schedule an event, whether or not the service runs then."""
        at = self.clock.true + seconds
        heapq.heappush(self._due, (at, next(self._order), do))
        if self._loop is not None:
            self._loop.call_at(at, self.catch_up)

    def catch_up(self) -> None:
        """Run all events that are due."""
        while self._due and self._due[0][0] <= self.clock.true:
            heapq.heappop(self._due)[2]()

    def sleep(self, seconds: float) -> None:
        """Advance the time, and run due events, without a service."""
        until = self.clock.true + seconds
        while self._due and self._due[0][0] <= until:
            self.clock.true = max(self.clock.true, self._due[0][0])
            self.catch_up()
        self.clock.true = until

    def process_control(
        self, attempt: Callable[[Machine, Path], VirtualAttempt] | None = None
    ) -> reconciler.ProcessControl:
        """Return this machine's processes for a local cluster, with another kind of attempt."""
        return reconciler.ProcessControl(
            attempt=partial(attempt or VirtualAttempt, self),  # type: ignore[arg-type]
            watch=self.watch,
            lasting=lambda process: process,
            end_tree=self.end_session,
            kill_leftovers=lambda *_: None,
            end_session=self.left_of_session,
        )

    # -- supervisors -----------------------------------------------------------------------------

    def launch(
        self, place: Path, instructions: Instructions, environment: Mapping[str, str]
    ) -> Any:
        """Start a supervisor; a second one in the same directory does nothing."""
        start = self.starts.setdefault(place, Start(place))
        pid = next(self._pids)
        status, status_write = os.pipe()
        self._launching.add(pid)

        def take_lock() -> None:
            os.close(status_write)
            self._launching.discard(pid)
            if start.holder is not None or start.begun:
                self._ended(pid)
                return
            start.holder, start.begun = pid, True
            start.grace_s = instructions.grace_seconds
            start.worker = environment["RUNAI_WORKER"]
            visible = [d for d in environment["CUDA_VISIBLE_DEVICES"].split(",") if d]
            milli = round(float(environment.get("RUNAI_GPU_FRACTION") or 1) * 1000)
            start.devices = tuple((device, milli) for device in visible)
            self._begin_program(start)

        self.later(self.dice.choice([0.01, 0.05, 0.5]), take_lock)
        return pid, status

    def _begin_program(self, start: Start) -> None:
        start.process = Process(next(self._pids), self.clock())
        start.since = self.clock.true
        self._check(start)
        work = self.work[start.worker]
        if work.succeeded and work.alone:
            self.violations.append(f"{start.worker} runs again though it had finished")
        if work.fails:
            work.fails -= 1
            self.later(min(5.0, work.seconds / 2), lambda: self._end_program(start, 1))
        else:
            self.later(work.seconds - work.done, lambda: self._end_program(start, 0))

    def _end_program(self, start: Start, exit_code: int) -> None:
        if start.program_exit_status is not None or start.holder is None:
            return
        if start.deferred is not None:  # its supervisor is stopped
            start.deferred.append(lambda: self._end_program(start, exit_code))
            return
        self._save_progress(start)
        start.program_exit_status = ExitStatus(exit_code, stop_requested=start.stop_requested)
        self.work[start.worker].succeeded = exit_code == 0
        if self._kills_at_next_end:
            self._kills_at_next_end = False
            self._release_lock(start)  # only its subreaper has seen it
            return
        self.later(self.dice.choice([0.0, 0.0, 0.5]), lambda: self._report_end(start))

    def _report_end(self, start: Start) -> None:
        if start.deferred is not None:
            start.deferred.append(lambda: self._report_end(start))
        elif start.holder is not None:
            start.exit_status = start.program_exit_status
            self._release_lock(start)

    def _release_lock(self, start: Start) -> None:
        start.deferred = None
        pid, start.holder = start.holder, None
        assert pid is not None
        self._ended(pid)

    def _save_progress(self, start: Start) -> None:
        work = self.work[start.worker]
        work.done = min(work.seconds, work.done + self.clock.true - start.since)

    def terminate(self, pid: int) -> None:
        """Send SIGTERM to a supervisor."""
        for start in self.starts.values():
            if start.holder == pid and start.deferred is not None:
                start.deferred.append(lambda: self.terminate(pid))
            elif start.holder == pid and not start.stop_requested:
                start.stop_requested = True
                delay_s = self.dice.uniform(0, start.grace_s)
                if self.work[start.worker].obeys:
                    self.later(delay_s, lambda start=start: self._end_program(start, 143))  # type: ignore[misc]
                else:
                    self.later(start.grace_s, lambda start=start: self._end_program(start, -9))  # type: ignore[misc]

    def kill_supervisor(self) -> str:
        """Kill a random live supervisor, as an administrator might; its worker dies with it."""
        living = [start for start in self.starts.values() if start.process and start.holder]
        if not living:
            return ""
        start = self.dice.choice(living)
        if start.program_exit_status is None:
            self._save_progress(start)
        self._release_lock(start)
        return start.worker

    def kill_supervisor_at_an_end(self) -> None:
        """Kill a supervisor at the next end of a worker, before it records that end."""
        self._kills_at_next_end = True

    def freeze_supervisor(self, seconds: float) -> None:
        """Stop a random live supervisor, as SIGSTOP does; its worker runs on meanwhile."""
        living = [start for start in self.running() if start.deferred is None]
        if living:
            start = self.dice.choice(living)
            start.deferred = []
            self.later(seconds, lambda: self._resume(start))

    def _resume(self, start: Start) -> None:
        deferred, start.deferred = start.deferred or [], None
        for do in deferred:
            do()

    def kill_processes(self, place: Path) -> None:
        """Kill a worker, and wake its supervisor to report the end."""
        start = self.starts.get(place, Start(place))
        if start.holder is not None:
            self._resume(start)
            self._end_program(start, -9)

    def any_frozen(self) -> bool:
        """Return True if a supervisor is stopped now."""
        return any(start.deferred is not None for start in self.running())

    # -- sessions --------------------------------------------------------------------------------

    def begin_session(self, seconds: float) -> Process:
        """Start a notebook server that ends by itself after `seconds`."""
        process = Process(next(self._pids), self.clock())
        self.sessions[process.pid] = process
        self.later(seconds, lambda: self.end_session(process))
        return process

    def end_session(self, process: Process) -> None:
        """End a notebook server, on request or by itself."""
        if self.sessions.pop(process.pid, None) is not None:
            self._ended(process.pid)

    async def left_of_session(self, _session: SessionProcesses) -> Sequence[LeftOver]:
        """Return nothing: its kernels end with a server here."""
        return ()

    # -- watches ---------------------------------------------------------------------------------

    def alive(self, pid: int) -> bool:
        """Return True if a process lives."""
        known = self.sessions.keys() | self._launching
        return pid in known or any(s.holder == pid for s in self.starts.values())

    def watch(self, pid: int, named: Process | None, on_exit: Callable[[], None]) -> Any:
        """Watch a process, as `ProcessWatch` does."""
        del named
        return VirtualWatch(self, pid, on_exit)

    def _ended(self, pid: int) -> None:
        for on_exit in self._watchers.pop(pid, []):
            assert self._loop is not None
            self._loop.call_soon(on_exit)

    # -- violations ------------------------------------------------------------------------------

    def running(self) -> list[Start]:
        """Return the starts with a live process."""
        return [s for s in self.starts.values() if s.holder is not None and s.process is not None]

    def _check(self, new: Start) -> None:
        milli_by_device: dict[str, int] = {}
        for start in self.running():
            if start is not new and start.worker == new.worker:
                self.violations.append(f"{new.worker} runs twice at {self.clock.true:.1f} s")
            for device, milli in start.devices:
                milli_by_device[device] = milli_by_device.get(device, 0) + milli
        over = {device: milli for device, milli in milli_by_device.items() if milli > 1000}
        if over:
            self.violations.append(f"devices are given twice at {self.clock.true:.1f} s: {over}")


class VirtualWatch:
    """Watch of one process that calls back once, when it has ended."""

    def __init__(self, machine: Machine, pid: int, on_exit: Callable[[], None]) -> None:
        self.pid = pid
        self._machine = machine
        self._on_exit = on_exit
        self._open = True
        machine._watchers.setdefault(pid, []).append(self._ended)
        if not machine.alive(pid):  # already ended: call back soon, as a real watch does
            asyncio.get_running_loop().call_soon(self._ended)

    def send(self, _number: int) -> None:
        if self.pid in self._machine.sessions:
            self._machine.end_session(self._machine.sessions[self.pid])
        else:
            self._machine.terminate(self.pid)

    def close(self) -> None:
        self._open = False

    def _ended(self) -> None:
        if self._open:
            self._open = False
            self._on_exit()


class VirtualAttempt:
    """Fake of `Attempt`: the directory of one start."""

    def __init__(self, machine: Machine, place: Path) -> None:
        self._machine = machine
        self._place = place

    def launch(self, instructions: Instructions, environment: Mapping[str, str]) -> Any:
        return self._machine.launch(self._place, instructions, environment)

    def forget_environment(self) -> None:
        pass

    def holder(self) -> int | None:
        return self._start.holder

    def begun(self) -> bool:
        return self._start.begun

    def kill_processes(self) -> None:
        self._machine.kill_processes(self._place)

    def process(self) -> Process | None:
        return self._start.process

    def final_exit(self) -> ExitStatus | None:
        return self._start.exit_status

    def program_exit(self) -> ExitStatus | None:
        return self._start.program_exit_status

    def has_new_checkpoint(self) -> bool | None:
        return None

    def code(self) -> Code | None:
        return Code()

    @property
    def _start(self) -> Start:
        return self._machine.starts.get(self._place, Start(self._place))
