"""Averages against exact integrals where process numbers are used again, by whomever.

Real processes get the numbers (`process_numbers`), the agent finds out whose they are, the ledger
adds up what it reports. A number changes hands between two polls, and both holders were busy; a
workload ends within a poll; the driver repeats its samples; agents and reports come and go.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runai.hub_service.api.reports import AgentReport
from runai.hub_service.ledger import Held, Ledger, UsageFilter
from runai.hub_service.ledger.store import Store

pytestmark = pytest.mark.pids

START = 1_700_000_000.0
TICK_S = 0.25
OWNERS = ("vision/a", "vision/b", "nlp/c", "")
"""The first two are known by their process, the third by its environment; "" is no workload."""
HELD = [Held(name.partition("/")[0], "ana", name, "GPU-0", 300, "n1") for name in OWNERS[:3]]
NUMBERS = (20_001, 20_002, 20_003)


@dataclass(frozen=True)
class Turn:
    """What one number does between two polls: its holder, then perhaps the next one."""

    before: int
    """How busy the holder is, in percent; 0: the driver tells nothing of it."""
    then: Literal["stays", "ends"] | int
    """A number: the process of that owner gets it."""
    after: int


@dataclass(frozen=True)
class Step:
    ticks: int
    turns: tuple[Turn, ...]
    leaves: bool
    """Whether nlp/c gives its share back in the middle, and ends."""
    agent: Literal["stays", "starts anew"]
    delivery: Literal["once", "twice", "lost"]


BUSY = st.sampled_from([0, 7, 50, 100])
TURNS = st.builds(
    Turn,
    BUSY,
    st.one_of(st.sampled_from(["stays", "stays", "ends"]), st.integers(0, len(OWNERS) - 1)),  # type: ignore[arg-type]
    BUSY,
)
STEPS = st.builds(
    Step,
    ticks=st.integers(1, 8),
    turns=st.tuples(*[TURNS] * len(NUMBERS)),
    leaves=st.sampled_from([False, False, False, True]),
    agent=st.sampled_from(["stays"] * 5 + ["starts anew"]),  # type: ignore[arg-type]
    delivery=st.sampled_from(["once"] * 5 + ["twice", "lost"]),  # type: ignore[arg-type]
)

World = Callable[..., Any]


@pytest.fixture(scope="module")
def world(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Return a function that has the other world do something and gives its answer."""
    state = tmp_path_factory.mktemp("numbers") / "nvml.state"
    state.write_text("")
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    program = [sys.executable, str(Path(__file__).with_name("process_numbers.py")), *OWNERS]
    told = {"FAKE_NVML_STATE": str(state), "LD_LIBRARY_PATH": str(nvml_library.parent)}
    process = subprocess.Popen(
        [*alone, *program],
        env=os.environ | told,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(*request: object) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    with process:
        yield ask
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    folder = tmp_path_factory.mktemp("ledgers")
    empty = folder / "empty.sqlite"
    Store(empty).close()
    return lambda: Path(shutil.copy(empty, folder / f"{len(list(folder.iterdir()))}.sqlite"))


class Replay:
    """Plays a trace to the other world and to a ledger, and keeps what is true of it."""

    def __init__(self, world: World, database: Path) -> None:
        self.now = START
        self.ledger = Ledger(database, clock=lambda: self.now)
        self.held_s = dict.fromkeys(OWNERS[:3], 0.0)
        self.measured_s = dict.fromkeys(OWNERS[:3], 0.0)
        self.used_s = dict.fromkeys(OWNERS[:3], 0.0)
        self._world = world
        self._holders: dict[int, str] = {}
        world("begin")
        self._roots = {name: world("roots")[name] for name in OWNERS[:2]}

    def play(self, step: Step) -> None:
        start, length = self.now, step.ticks * TICK_S
        self.ledger.record(start, 0, HELD)
        if step.agent == "starts anew":
            self._world("restart")
        busy = dict.fromkeys(OWNERS, 0.0)
        for number, turn in zip(NUMBERS, step.turns, strict=True):
            for owner, load in self._turn(number, turn, step):
                busy[owner] += load
        held, held_s = HELD, dict.fromkeys(OWNERS[:3], length)
        if step.leaves and step.agent == "stays":
            held, held_s["nlp/c"] = HELD[:2], length / 2
            self._end_all_of("nlp/c")
            self.ledger.record(start + length / 2, 0, held)
        report = AgentReport.model_validate(self._world("poll", self._allocations(held)))
        self.now = start + length
        report = report.model_copy(update={"at": self.now, "interval": length})
        for _ in range({"once": 1, "twice": 2, "lost": 0}[step.delivery]):
            self.ledger.record(self.now, length, held, report)
        for owner, seconds in held_s.items():
            self.held_s[owner] += seconds
            # Of who left, only what was busy is told; the rest of that second is a gap.
            told = busy[owner] > 0 or any(owner == one.workload for one in held)
            if told and step.delivery != "lost":
                self.measured_s[owner] += seconds
                self.used_s[owner] += length * min(1.0, busy[owner])

    def finish(self) -> None:
        """End on a whole stretch, so that the range asked for is the range answered."""
        self.ledger.record(self.now, 0, [])
        self.now = -(-self.now // 10) * 10 + 10
        self.ledger.record(self.now, 0, [])

    def _turn(self, number: int, turn: Turn, step: Step) -> list[tuple[str, float]]:
        """Play what a number does; return how busy it kept whom, on average of its samples."""
        samples: list[tuple[str, int]] = []
        if turn.before and (holder := self._holders.get(number)) is not None:
            samples.append((holder, turn.before))
            self._world("sample", number, turn.before)
        # An agent that was not there cannot know whose a number was before.
        if turn.then != "stays" and step.agent == "stays":
            if self._holders.pop(number, None) is not None:
                self._world("end", number)
            # Nor can one that never saw a process: who leaves starts nothing more.
            if turn.then != "ends" and not (step.leaves and OWNERS[turn.then] == "nlp/c"):
                owner = self._holders[number] = OWNERS[turn.then]
                self._world("start", number, owner)
                if turn.after:
                    samples.append((owner, turn.after))
                    self._world("sample", number, turn.after)
        return [(owner, busy / 100 / len(samples)) for owner, busy in samples]

    def _end_all_of(self, owner: str) -> None:
        for number in [n for n, holder in self._holders.items() if holder == owner]:
            del self._holders[number]
            self._world("end", number)

    def _allocations(self, held: list[Held]) -> list[dict[str, Any]]:
        shares = [{"device": 0, "uuid": "GPU-0", "gpus": 0.3}]
        return [
            {
                "workload": one.workload,
                "worker": f"{one.workload}-0",
                "project": one.project,
                "user": one.user,
                "shares": shares,
                "pid": self._roots.get(one.workload, (None, None))[0],
                "created": self._roots.get(one.workload, (None, None))[1],
            }
            for one in held
        ]


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(trace=st.lists(STEPS, min_size=1, max_size=8))
def test_averages_are_exact_whoever_gets_a_number_next(trace, world, new_database):
    played = Replay(world, new_database())
    for step in trace:
        played.play(step)
    played.finish()
    for owner in OWNERS[:3]:
        series = asyncio.run(played.ledger.usage(UsageFilter(workload=owner), START, played.now))
        used, measured = played.used_s[owner], played.measured_s[owner]

        # 0.1 points of a GPU is 0.001; what is added up in seconds is as exact as floats are.
        assert series.utilized_average == pytest.approx(
            used / measured if measured else None, abs=1e-6
        ), owner
        assert series.used_gpu_hours == pytest.approx(used / 3600, abs=1e-6), owner
    played.ledger.close()
