"""Real faults injected into a platform: each lasts until it has an effect, then is repaired.

The kinds are shuffled and dealt like cards, so that twenty seeds meet every kind several times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from crashes.ground import Ground
from crashes.small_disk import immutable
from waiting import eventually

KINDS = (
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
A_HAND = 5
HOUR_S = 3600
GETS_ON_BY = 10
"""Steps of all jobs together for which a temporary fault lasts."""

STANDS_STILL_S = 5.0
"""Time limit for that progress: jobs without it wait for the broken part, or have ended."""

_NEEDS = {"disk": "disk", "database": "disk", "clock": "clock", "PostgreSQL": "server"}


def hand(seed: int) -> list[str]:
    """Return the kinds of faults of a seed, in the order of injection."""
    dice, deck = random.Random("the deck of breakages"), list[str]()
    while len(deck) < A_HAND * seed:
        deck += dice.sample(KINDS, len(KINDS))
    return deck[A_HAND * (seed - 1) : A_HAND * seed]


def needs_of(kinds: list[str]) -> set[str]:
    """Return the parts that these faults require: `disk`, `clock`, `server`."""
    return {_NEEDS[word] for kind in kinds if (word := kind.split()[0]) in _NEEDS}


class Breakages:
    """Fault injector for one ground; repairs each fault as an administrator would."""

    def __init__(self, ground: Ground, dice: random.Random, is_refused: Callable[[], bool]) -> None:
        """`is_refused` returns True if users were refused since the fault began."""
        self._ground = ground
        self._dice = dice
        self._is_refused = is_refused
        self._clock_is_off_s = 0

    def happen(self, kind: str) -> None:
        """Inject one fault and repair it."""
        who, what = kind.split(maxsplit=1)
        if who == "clock":
            self._set_clock(HOUR_S if what.endswith("on") else -HOUR_S)
        elif who == "disk":
            self._fill_disk()
        elif who == "database":
            self._protect_database()
        elif who == "PostgreSQL":
            self._stop_server(at_once=what == "killed")
        elif kind == "hub killed":
            self._ground.platform.kill()
            self._ground.platform.start()
        else:
            with suppress(LookupError, psutil.Error):  # the process is being restarted
                process = self._process(who)
                process.kill() if what == "killed" else self._freeze(process)

    def _process(self, who: str) -> psutil.Process:
        if who == "service":
            return self._ground.platform.service_process()
        if who == "hub":
            return self._ground.hub()
        if who == "agent":
            return self._ground.agent()
        if who == "worker":
            return self._ground.worker()
        return self._dice.choice(self._ground.supervisors())

    def _freeze(self, process: psutil.Process) -> None:
        process.suspend()
        try:
            self._let_jobs_get_on()
        finally:
            process.resume()

    def _let_jobs_get_on(self) -> None:
        before = self._ground.steps_done()
        with suppress(AssertionError):  # no job runs now
            eventually(
                lambda: self._ground.steps_done() > before + GETS_ON_BY, within=STANDS_STILL_S
            )

    def _fill_disk(self) -> None:
        disk = self._ground.disk
        assert disk is not None

        def bites() -> bool:
            disk.fill()
            return self._is_refused()

        try:
            eventually(bites, within=60, what="somebody is refused: the disk is full")
        finally:
            disk.make_room()

    def _protect_database(self) -> None:
        with self._protected():
            eventually(self._is_refused, within=60, what="somebody is refused: nothing is written")

    @contextmanager
    def _protected(self) -> Iterator[None]:
        name = self._ground.database.name
        files = sorted(self._ground.database.parent.glob(f"{name}*"))
        immutable(files, are=True)
        try:
            yield
        finally:
            immutable(files, are=False)

    def _set_clock(self, by_s: int) -> None:
        assert self._ground.clock is not None
        self._clock_is_off_s += by_s
        self._ground.clock.set(self._clock_is_off_s)
        self._let_jobs_get_on()

    def _stop_server(self, *, at_once: bool) -> None:
        server = self._ground.server
        assert server is not None
        if at_once:
            server.kill()
        else:
            server.stop()
        self._let_jobs_get_on()
        server.start()
