"""One seed: Bob and Patty use five GPUs while five faults are injected.

`run_seed` returns the outcome; its `violations` have a sentence for each violated rule. Replay one
seed alone: `pytest tests/crashes --seed 17`.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from crashes.database_checker import (
    DatabaseChecker,
    orphaned_processes,
    runs_after_success,
    unfinished_starts,
)
from crashes.fault_injection import FaultInjector, faults_of_seed, needs_of
from crashes.ledger_sums import UNWRITTEN_S, wrong_sums
from crashes.testbed import Testbed, running_testbed
from runai.hub_service.client import Client
from runai.hub_service.wire.errors import Conflict, RunaiError, Unavailable
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

COUNTING_JOB = Path(__file__).with_name("counting_job.py")
FINISHED = {"succeeded", "failed", "ended"}
STEP_S = "0.05"
READY_WITHIN_S = 120.0
DRAINED_WITHIN_S = 180.0
RETRY_S = 0.2
FAULTS_WITH_LOST_USAGE = {
    *("service killed", "hub killed"),
    *("clock an hour on", "clock an hour back"),
    # Usage stays in memory, unless the service is killed before it could be written.
    *("disk full", "database read-only", "PostgreSQL killed", "PostgreSQL restarted"),
}
"""Faults during which the ledger may miss usage; during all other faults it misses none."""


@dataclass
class SeedOutcome:
    """Outcome of one seed."""

    seed: int
    faults: list[tuple[str, float]] = field(default_factory=list)
    """Faults in order, each with the seconds from its end until the platform was ready."""
    acknowledged: int = 0
    refused: int = 0
    """Number of requests that were refused with the advice to try again."""
    checks: int = 0
    """Number of checks of the database."""
    violations: list[str] = field(default_factory=list)


class UserRequest(threading.Thread):
    """Thread of a user that repeats one request until it is done, despite refusals."""

    def __init__(self, name: str, send: Callable[[], object], after: UserRequest | None) -> None:
        super().__init__(name=name)
        self._send = send
        self._after = after
        """Earlier request to await before this one: the user changes their mind."""
        self.cancelled = threading.Event()
        self.is_done = False
        self.refused = 0
        self.failed: Exception | None = None

    def run(self) -> None:
        if self._after is not None:
            self._after.join()
        while not self.cancelled.is_set() and not self.is_done and self.failed is None:
            try:
                self._send()
                self.is_done = True
            except Unavailable:
                self.refused += 1
                self.cancelled.wait(RETRY_S)
            except Conflict:  # an earlier try was carried out, but its answer was lost
                self.is_done = True
            except Exception as failed:  # noqa: BLE001  a finding
                self.failed = failed


class SeedRun:
    """One seed in progress."""

    def __init__(self, testbed: Testbed, seed: int) -> None:
        self._testbed = testbed
        self._dice = random.Random(seed)
        self._outcome = SeedOutcome(seed)
        self._checker = DatabaseChecker(testbed)
        self._bob, self._patty = (testbed.platform.client(user) for user in ("bob", "patty"))
        self._requests: list[UserRequest] = []
        self._steps: dict[str, int] = {}
        """Steps of each job, by its id."""
        self._uncounted_s = 0.0
        self._injector = FaultInjector(testbed, self._dice, self._is_refused)
        self._refused_before = 0

    def run(self, kinds: list[str]) -> SeedOutcome:
        """Play the seed and return its outcome."""
        self._checker.start()
        try:
            self._play(kinds)
        finally:
            self._checker.end()
            for request in self._requests:
                request.cancelled.set()
                request.join()
        self._outcome.violations += self._checker.violations
        self._outcome.checks = self._checker.checks
        self._outcome.refused = self._refused_count()
        return self._outcome

    def _play(self, kinds: list[str]) -> None:
        for number in range(6):
            self._submit(self._bob, "vision", f"bob-{number}", steps=100, gpus=1)
        for number in range(2):
            self._submit(self._bob, "vision", f"half-{number}", steps=100, gpus=0.5)
        self._await_requests()
        self._checker.is_calm.set()
        suspended: UserRequest | None = None
        moments = sorted(self._dice.sample(range(1, 600), len(kinds)))
        for number, (moment, kind) in enumerate(zip(moments, kinds, strict=True)):
            eventually(partial(self._has_reached, moment), within=DRAINED_WITHIN_S)
            if number == 1:
                self._submit(self._patty, "nlp", "patty-0", steps=20, gpus=1)
                self._submit(self._patty, "nlp", "patty-1", steps=20, gpus=1)
            if number == 2:
                bob_1 = partial(self._bob.suspend, "vision/bob-1")
                suspended = self._send_request("suspend bob-1", bob_1)
            if number == 3:
                bob_1 = partial(self._bob.resume, "vision/bob-1")
                self._send_request("resume bob-1", bob_1, after=suspended)
            self._break(kind)
        self._await_requests()
        self._await_jobs()
        self._check()

    # -- users -----------------------------------------------------------------------------------

    def _submit(self, client: Client, project: str, name: str, steps: int, gpus: float) -> None:
        command = ["python", str(COUNTING_JOB), str(steps), STEP_S, str(self._testbed.witness)]
        request = SubmitRequest(name=name, gpus=gpus, command=command, grace_seconds=10)
        self._send_request(f"submit {name}", partial(client.submit, request))
        self._steps[f"{project}/{name}"] = steps

    def _send_request(
        self, name: str, send: Callable[[], object], after: UserRequest | None = None
    ) -> UserRequest:
        self._requests.append(UserRequest(name, send, after))
        self._requests[-1].start()
        return self._requests[-1]

    def _await_requests(self) -> None:
        for request in self._requests:
            request.join(READY_WITHIN_S)
            assert request.is_done, f"{request.name}: {request.failed or 'not done in time'}"
        self._outcome.acknowledged = len(self._steps)

    def _states(self, client: Client) -> dict[str, str]:
        with suppress(RunaiError):
            return {workload.id: workload.state for workload in client.workloads()}
        return {}

    def _await_jobs(self) -> None:
        states: dict[str, str] = {}

        def finished() -> bool:
            states.update(self._states(self._bob) | self._states(self._patty))
            assert set(states.values()) <= FINISHED, states
            return states.keys() >= self._steps.keys()

        eventually(finished, within=DRAINED_WITHIN_S)
        self._outcome.violations += [
            f"{name} is {state} at the end"
            for name, state in states.items()
            if state != "succeeded"
        ]
        self._outcome.violations += [
            f"no user submitted {name}" for name in states.keys() - self._steps
        ]

    # -- what breaks -----------------------------------------------------------------------------

    def _has_reached(self, moment: int) -> bool:
        return self._testbed.steps_done() >= moment or self._testbed.cycles() is None

    def _break(self, kind: str) -> None:
        self._checker.is_calm.clear()
        began = time.monotonic()
        self._refused_before = self._refused_count()
        self._submit_late()  # in the very moment of the fault
        self._injector.inject(kind)
        ended = began if kind.endswith("killed") else time.monotonic()
        eventually(self._is_ready, within=READY_WITHIN_S, what=f"ready again after: {kind}")
        self._outcome.faults.append((kind, round(time.monotonic() - ended, 2)))
        if kind == "clock an hour back":
            self._uncounted_s = math.inf  # until the clock is as late again
        if kind in FAULTS_WITH_LOST_USAGE:
            self._uncounted_s += time.monotonic() - began + UNWRITTEN_S
        self._checker.is_calm.set()

    def _refused_count(self) -> int:
        return sum(request.refused for request in self._requests)

    def _is_refused(self) -> bool:
        """Return True if a request was refused since the fault began.

        Submit another late job if the last one was stored just before the fault.
        """
        if self._requests[-1].is_done:
            self._submit_late()
        return self._refused_count() > self._refused_before

    def _submit_late(self) -> None:
        self._submit(self._bob, "vision", f"late-{len(self._requests)}", steps=10, gpus=1)

    def _is_ready(self) -> bool:
        return self._testbed.readiness() == {"status": "ready"}

    # -- what must hold --------------------------------------------------------------------------

    def _check(self) -> None:
        testbed, violations = self._testbed, self._outcome.violations
        with suppress(FileNotFoundError):
            violations += (testbed.witness / "violations").read_text().splitlines()
        # A job that is killed with its supervisor after its last step, but before its exit, has not
        # finished: it resumes from its last checkpoint and repeats that step.
        unfinished = unfinished_starts(testbed)
        for name, steps in self._steps.items():
            done = testbed.witness / f"{name.replace('/', '+')}.done"
            ends = done.read_text().split() if done.exists() else []
            if not ends or set(ends) != {str(steps)}:
                violations.append(f"{name} counted {ends}, not {steps}")
            elif len(ends) > 1 + unfinished[name.partition("/")[2]]:
                violations.append(f"{name} was done {len(ends)} times")
        violations += runs_after_success(testbed)
        violations += orphaned_processes(testbed, COUNTING_JOB)
        violations += [
            f"device {device.uuid} is still taken"
            for node in self._bob.nodes()
            for device in node.devices
            if device.allocated
        ]
        admin = testbed.platform.client("admin")
        violations += wrong_sums(testbed, admin, self._uncounted_s, self._checker.reserved)


def run_seed(seed: int, folder: Path) -> SeedOutcome:
    """Play one seed on a new platform below an empty folder."""
    kinds = faults_of_seed(seed)
    with running_testbed(folder, needs_of(kinds)) as testbed:
        return SeedRun(testbed, seed).run(kinds)
