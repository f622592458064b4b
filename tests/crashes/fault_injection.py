"""Real faults injected into a platform: each lasts until it has an effect, then is repaired.

The kinds are shuffled and dealt like cards, so that twenty seeds meet every kind several times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from crashes.small_disk import immutable
from crashes.testbed import Testbed
from waiting import eventually

FAULT_KINDS = (
    "service killed",
    "service frozen",
    "hub killed",
    "hub frozen",
    "agent killed",
    "agent frozen",
    "worker killed",
    "worker frozen",
    "supervisor killed",
    "supervisor frozen",
    "disk full",
    "database read-only",
    "clock an hour on",
    "clock an hour back",
    "PostgreSQL killed",
    "PostgreSQL restarted",
)
FAULTS_PER_SEED = 5
HOUR_S = 3600
PROGRESS_STEPS = 10
"""Steps of all jobs together for which a temporary fault lasts."""

NO_PROGRESS_S = 5.0
"""Time limit for that progress: jobs without it wait for the broken part, or have ended."""

_NEEDS = {"disk": "disk", "database": "disk", "clock": "clock", "PostgreSQL": "server"}


def faults_of_seed(seed: int) -> list[str]:
    """Return the kinds of faults of a seed, in the order of injection."""
    dice, deck = random.Random("the deck of breakages"), list[str]()
    while len(deck) < FAULTS_PER_SEED * seed:
        deck += dice.sample(FAULT_KINDS, len(FAULT_KINDS))
    return deck[FAULTS_PER_SEED * (seed - 1) : FAULTS_PER_SEED * seed]


def needs_of(kinds: list[str]) -> set[str]:
    """Return the parts that these faults require: `disk`, `clock`, `server`."""
    return {_NEEDS[word] for kind in kinds if (word := kind.split()[0]) in _NEEDS}


class FaultInjector:
    """Fault injector for one testbed; repairs each fault as an administrator would."""

    def __init__(
        self, testbed: Testbed, dice: random.Random, is_refused: Callable[[], bool]
    ) -> None:
        """`is_refused` returns True if users were refused since the fault began."""
        self._testbed = testbed
        self._dice = dice
        self._is_refused = is_refused
        self._clock_is_off_s = 0

    def inject(self, kind: str) -> None:
        """Inject one fault and repair it."""
        target, effect = kind.split(maxsplit=1)
        if target == "clock":
            self._set_clock(HOUR_S if effect.endswith("on") else -HOUR_S)
        elif target == "disk":
            self._fill_disk()
        elif target == "database":
            self._protect_database()
        elif target == "PostgreSQL":
            self._stop_server(kill=effect == "killed")
        elif kind == "hub killed":
            self._testbed.platform.kill()
            self._testbed.platform.start()
        else:
            with suppress(LookupError, psutil.Error):  # the process is being restarted
                process = self._process(target)
                process.kill() if effect == "killed" else self._freeze(process)

    def _process(self, target: str) -> psutil.Process:
        if target == "service":
            return self._testbed.platform.service_process()
        if target == "hub":
            return self._testbed.hub()
        if target == "agent":
            return self._testbed.agent()
        if target == "worker":
            return self._testbed.worker()
        return self._dice.choice(self._testbed.supervisors())

    def _freeze(self, process: psutil.Process) -> None:
        process.suspend()
        try:
            self._wait_for_progress()
        finally:
            process.resume()

    def _wait_for_progress(self) -> None:
        before = self._testbed.steps_done()
        with suppress(AssertionError):  # no job runs now
            eventually(
                lambda: self._testbed.steps_done() > before + PROGRESS_STEPS, within=NO_PROGRESS_S
            )

    def _fill_disk(self) -> None:
        disk = self._testbed.disk
        assert disk is not None

        def refuses_writes() -> bool:
            disk.fill()
            return self._is_refused()

        try:
            eventually(refuses_writes, within=60, what="a request is refused: the disk is full")
        finally:
            disk.make_room()

    def _protect_database(self) -> None:
        with self._protected():
            eventually(self._is_refused, within=60, what="a request is refused: nothing is written")

    @contextmanager
    def _protected(self) -> Iterator[None]:
        name = self._testbed.database.name
        files = sorted(self._testbed.database.parent.glob(f"{name}*"))
        immutable(files, are=True)
        try:
            yield
        finally:
            immutable(files, are=False)

    def _set_clock(self, by_s: int) -> None:
        assert self._testbed.clock is not None
        self._clock_is_off_s += by_s
        self._testbed.clock.set(self._clock_is_off_s)
        self._wait_for_progress()

    def _stop_server(self, *, kill: bool) -> None:
        server = self._testbed.server
        assert server is not None
        if kill:
            server.kill()
        else:
            server.stop()
        self._wait_for_progress()
        server.start()
