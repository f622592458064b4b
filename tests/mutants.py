"""Break the scheduler on purpose, one small change at a time: which breaks does no test notice?

`make mutants`. Collects the scheduler's tests once, learns which lines each test runs, then tries
every mutation in a forked child: puts the changed code into the living functions, runs the tests
that reach the changed line, quickest first, and stops at the first that fails. What became of each
is remembered; after new tests, `--again` tries those that survived. A test that takes too much
time or memory counts as one that fails. `--search` looks for worlds that notice the survivors.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from mutant_reach import SORTS, Reached, passes, sort_of
from mutant_sources import Mutant, Source
from mutant_worlds import Worlds

HERE = Path(__file__).parent
CHECKOUT = HERE.parent
CORE = CHECKOUT / "hub_service" / "scheduler"
TESTS = ("scheduler",)
NOT_DECIDING = ("__init__", "__main__", "wire")
"""Modules without a decision of their own."""
FIRST = (
    *("shares", "order", "quotas", "room", "placement", "fit", "search", "givers", "bounds"),
    *("reclaim", "victims", "allocate", "lanes", "state", "tree", "items", "cycle"),
    *("protection", "turns", "resize", "parts", "part_choice", "backfill", "ends"),
    *("consolidate", "vacate", "fragmentation", "frag_room", "kinds", "quantity"),
)
"""Modules in the order of their importance; the others follow by name."""

MEMORY_FILE = CHECKOUT / ".mutants.json"
"""What came of the mutants that were tried, by key."""
LISTED = "equivalent"
"""What came of a mutant that is listed as making no difference: it is not tried."""
CPU_S = 2.0
"""What a test may take beside five times what it takes unbroken."""
MEMORY = 4 << 30


class Session:
    """What pytest hands over once it has collected: takes the place of its own test loop."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Remember what was asked for."""
        self.options = options
        self.report: dict[str, Any] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests unbroken, then every mutant."""
        items = [
            item
            for item in session.items
            if not (self.options.tables and sort_of(item) == "property")
        ]
        reached = Reached(items, str(CORE), trusts_records=self.options.trust_records)
        if reached.failed:
            print(f"fails unbroken: {', '.join(reached.failed)}", file=sys.stderr)
            session.shouldfail = "the tests must pass before they are tried"
            return True
        there = {path.stem for path in CORE.glob("*.py")}.difference(NOT_DECIDING)
        in_order = [*(name for name in FIRST if name in there), *sorted(there.difference(FIRST))]
        names = self.options.modules or in_order
        sources = {name: Source(CORE / f"{name}.py") for name in names}
        every = [mutant for source in sources.values() for mutant in source.mutants()]
        self.report = {"mutants": len(every), "listed": sum(m.is_equivalent for m in every)}
        chosen = every
        if self.options.sample:
            # Drawn from all, those listed as equivalent among them: they count in the raw figure.
            seed = random.Random(self.options.seed)
            if self.options.fresh:
                chosen = [mutant for mutant in chosen if mutant.key not in _known()]
            # In the order drawn: a run that is cut short has tried a fair sample too.
            chosen = seed.sample(chosen, min(self.options.sample, len(chosen)))
            self.report["sample"] = {"seed": self.options.seed, "drawn": len(chosen)}
        self.report |= Trial(sources, reached, self.options).run(chosen)
        return True


class Trial:
    """Tries mutants in children, several at a time; remembers those that were noticed before."""

    def __init__(
        self, sources: dict[str, Source], reached: Reached, options: argparse.Namespace
    ) -> None:
        """Read what is known of earlier runs."""
        self._sources = sources
        self._reached = reached
        self._options = options
        self._worlds = Worlds(options.search)
        self._known = _known()

    def run(self, mutants: Sequence[Mutant]) -> dict[str, Any]:
        """Try them until all are done or the budget is spent."""
        gc.collect()
        gc.freeze()
        ends = time.monotonic() + self._options.minutes * 60
        outcomes = {
            m: self._known[m.key]
            for m in mutants
            if m.key in self._known
            and not m.is_equivalent
            and (_is_noticed(self._known[m.key]) or not self._options.again)
        }
        print(f"{len(mutants)} mutants, {len(outcomes)} of them known already", flush=True)
        waiting = [m for m in mutants if m not in outcomes][::-1]
        if self._options.again:
            waiting = [m for m in waiting if m.key in self._known]
        running: dict[int, Mutant] = {}
        while running or (waiting and time.monotonic() < ends):
            while waiting and len(running) < self._options.processes and time.monotonic() < ends:
                mutant = waiting.pop()
                if mutant.is_equivalent:
                    outcomes[mutant] = LISTED
                else:
                    running[self._try(mutant)] = mutant
            if not running:
                break
            pid, status = os.wait()
            mutant = running.pop(pid)
            noticed_by = self._learn(pid)
            outcomes[mutant] = noticed_by or _outcome(status)
            self._remember(mutant, outcomes[mutant])
            if not _is_noticed(outcomes[mutant]):
                print(f"{outcomes[mutant]:>9}  {mutant.title}", flush=True)
            if not len(outcomes) % 50:
                print(_rate(outcomes.values()), flush=True)
        return {
            **_summary(outcomes, not_tried=len(mutants) - len(outcomes)),
            "worlds_to_record": sorted(self._worlds.noticed),
        }

    def _remember(self, mutant: Mutant, outcome: str) -> None:
        """Keep what came of it: that need not be tried again while its function stays as it is."""
        self._known[mutant.key] = outcome
        MEMORY_FILE.write_text(json.dumps(self._known, indent=0, sort_keys=True))

    def _learn(self, pid: int) -> str:
        """Take up which test it was that noticed; say what it is."""
        told = _told_by(pid)
        if not told.exists():
            return ""
        sort, _, name = told.read_text().partition(" ")
        told.unlink()
        if sort == "world":
            self._worlds.noticed[int(name)] += 1
            return f"world {name}"
        self._reached.noticed[name] += 1
        return sort

    def _try(self, mutant: Mutant) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            status = self._child(mutant)
        except BaseException:  # noqa: BLE001  whatever happens in here, the tests would have seen it
            status = 1
        os._exit(status)

    def _child(self, mutant: Mutant) -> int:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        source = self._sources[mutant.module]
        tests = self._reached.tests(source.path, mutant.mutation.line, mutant.begins)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        if not tests:
            return 3
        if not source.become(mutant.mutation):
            return 4
        began = time.process_time()
        for item in tests:
            if time.process_time() - began > self._options.seconds:
                break
            # The timer's default action ends the child.
            signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S + 5 * self._reached.seconds[item])
            if not passes(item):
                _told_by(os.getpid()).write_text(f"{sort_of(item)} {item.nodeid}")
                return 1
        found = self._worlds.that_notices(self._options.search_seconds)
        if found is not None:
            _told_by(os.getpid()).write_text(f"world {found}")
        return 0


def _known() -> dict[str, str]:
    known: dict[str, str] = json.loads(MEMORY_FILE.read_text()) if MEMORY_FILE.exists() else {}
    return known


def _rate(outcomes: Collection[str]) -> str:
    return f"{sum(map(_is_noticed, outcomes))} of {len(outcomes)} noticed"


def _told_by(pid: int) -> Path:
    return Path(tempfile.gettempdir()) / f"runai-mutant-{pid}"


def _outcome(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "time"
    return {0: "survived", 3: "unreached", 4: "unplaced"}.get(os.WEXITSTATUS(status), "time")


def _is_noticed(outcome: str) -> bool:
    return outcome in {*SORTS, "time"}


def _place(mutant: Mutant) -> tuple[str, int, int, str]:
    return mutant.module, mutant.mutation.line, mutant.mutation.column, mutant.mutation.what


def _summary(outcomes: dict[Mutant, str], not_tried: int) -> dict[str, Any]:
    tried = {m: outcome for m, outcome in outcomes.items() if outcome != "unplaced"}
    modules: dict[str, dict[str, int]] = {}
    for mutant, outcome in sorted(tried.items(), key=lambda entry: _place(entry[0])):
        counts = modules.setdefault(mutant.module, {"tried": 0, "noticed": 0})
        counts["tried"] += 1
        counts["noticed"] += _is_noticed(outcome)
    noticed = sum(counts["noticed"] for counts in modules.values())
    differing = sum(not mutant.is_equivalent for mutant in tried)
    by = Counter(outcome for outcome in tried.values() if _is_noticed(outcome))
    return {
        "tried": len(tried),
        "noticed": noticed,
        "noticed_pct": _percentage(noticed, len(tried)),
        "make_no_difference": len(tried) - differing,
        "noticed_pct_of_those_that_do": _percentage(noticed, differing),
        "noticed_by": dict(sorted(by.items())),
        "not_tried": not_tried,
        "modules": modules,
        "survivors": [
            {"mutant": m.title, "why": m.why}
            for m in sorted(tried, key=_place)
            if not _is_noticed(tried[m])
        ],
    }


def _percentage(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0


def main() -> int:
    """Try mutants; 0 if enough of them were noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="of the scheduler; left out: all")
    parser.add_argument("--sample", type=int, help="try so many, chosen by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="sample only what was never tried")
    parser.add_argument("--minutes", type=float, default=600, help="start no more after that")
    parser.add_argument("--tables", action="store_true", help="try only tests without examples")
    parser.add_argument(
        "--trust-records", action="store_true", help="do not run recorded worlds unbroken first"
    )
    parser.add_argument("--seconds", type=float, default=10, help="of processor for one mutant")
    parser.add_argument("--search", type=int, default=0, help="worlds beside the recorded ones")
    parser.add_argument("--search-seconds", type=float, default=20, help="for one mutant")
    parser.add_argument(
        "--again", action="store_true", help="try those that survived before, no others"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--least", type=float, default=95, help="per cent to notice of those that differ"
    )
    parser.add_argument("--output", type=Path, help="write the report there")
    options = parser.parse_args()
    os.environ["RUNAI_HYPOTHESIS"] = "mutants"
    session = Session(options)
    quiet = ["-q", "--no-header", "-p", "no:cacheprovider", "-o", "timeout=0", "--durations=0"]
    paths = [str(HERE / folder) for folder in TESTS]
    pytest.main([*quiet, "--durations-min=9999", *paths], plugins=[session])
    report = session.report
    if not report:
        return 1
    print(json.dumps({k: v for k, v in report.items() if k != "survivors"}, indent=1))
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if report["noticed_pct_of_those_that_do"] >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
