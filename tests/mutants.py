"""Break the scheduler on purpose, one small change at a time: which breaks does no test notice?

`make mutants`. Collects the scheduler's tests once, learns which lines each test runs, then tries
every mutation in a forked child: puts the changed code into the living functions, runs the tests
that reach the changed line, quickest first, and stops at the first that fails. What became of each
is remembered; after new tests, `--again` tries those that survived. A test that takes too much
time or memory counts as one that fails. `--search` looks for worlds that notice the survivors.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from equivalent_mutants import EQUIVALENT
from mutant_reach import SORTS, Reached, passes, sort_of
from mutant_worlds import Worlds
from mutations import Mutation, mutations

HERE = Path(__file__).parent
CHECKOUT = HERE.parent
CORE = CHECKOUT / "hub_service" / "scheduler"
NAMESPACE = "runai.hub_service.scheduler"
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

CPU_S = 2.0
"""What a test may take beside five times what it takes unbroken."""
MEMORY = 4 << 30


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutation of a module, and a name that stays while its function stays as it is."""

    module: str
    mutation: Mutation
    where: str
    """Its function."""
    begins: int
    """The line where the code of that function begins, its decorators included."""
    key: str
    text: str
    """The line that is changed."""

    @property
    def is_equivalent(self) -> bool:
        """Tell whether it is known that nothing differs."""
        known = EQUIVALENT.get((self.module, self.where), ())
        return any(e.what in {self.mutation.what, "*"} and e.text in self.text for e in known)

    @property
    def title(self) -> str:
        """Say where it is and what it does."""
        m = self.mutation
        return f"{self.module}.py:{m.line}:{m.column} {self.where}: {m.what}  |  {self.text}"


class Source:
    """A module's source as it is, and the functions that live of it."""

    def __init__(self, path: Path) -> None:
        """Read and compile it."""
        self.name = path.stem
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.module = sys.modules[f"{NAMESPACE}.{self.name}"]
        self.path = str(self.module.__file__)
        self.lines = self.text.splitlines()
        self.code = compile(self.tree, self.path, "exec")
        self._functions = {
            node: ast.dump(node)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef)
        }
        self._living = [
            thing
            for thing in gc.get_objects()
            if type(thing) is types.FunctionType and thing.__code__.co_filename == self.path
        ]

    def mutants(self) -> Iterator[Mutant]:
        """Give every mutant of a function of the module."""
        for mutation in mutations(self.tree):
            function = self._function_at(mutation.line)
            if function is None:
                continue  # constants and tables of a module: what reads them is tried
            text = self.lines[mutation.line - 1].strip()
            shape = (
                f"{self._functions[function]} {mutation.line - function.lineno} {mutation.column}"
            )
            key = hashlib.sha1(f"{self.name} {shape} {mutation.what}".encode()).hexdigest()[:16]
            begins = min([function.lineno, *(node.lineno for node in function.decorator_list)])
            yield Mutant(self.name, mutation, function.name, begins, key, text)

    def _function_at(self, line: int) -> ast.FunctionDef | None:
        around = [f for f in self._functions if f.lineno <= line <= (f.end_lineno or 0)]
        return max(around, key=lambda function: function.lineno, default=None)

    def become(self, mutation: Mutation) -> int:
        """Put the changed code into every living function; tell how many there were."""
        changed = compile(mutation.put_into(self.tree), self.path, "exec")
        new_of: dict[tuple[str, int], types.CodeType] = {}
        for old, new in _pairs(self.code, changed):
            if old != new:
                new_of[old.co_qualname, old.co_firstlineno] = new
        count = 0
        for function in self._living:
            code = function.__code__
            replacement = new_of.get((code.co_qualname, code.co_firstlineno))
            if replacement is not None:
                function.__code__ = replacement
                count += 1
        return count


def _pairs(
    old: types.CodeType, new: types.CodeType
) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    olds = [c for c in old.co_consts if isinstance(c, types.CodeType)]
    news = [c for c in new.co_consts if isinstance(c, types.CodeType)]
    for one, other in zip(olds, news, strict=False):
        yield one, other
        yield from _pairs(one, other)


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
        reached = Reached(items, str(CORE))
        if reached.failed:
            print(f"fails unbroken: {', '.join(reached.failed)}", file=sys.stderr)
            session.shouldfail = "the tests must pass before they are tried"
            return True
        there = {path.stem for path in CORE.glob("*.py")}.difference(NOT_DECIDING)
        in_order = [*(name for name in FIRST if name in there), *sorted(there.difference(FIRST))]
        names = self.options.modules or in_order
        sources = {name: Source(CORE / f"{name}.py") for name in names}
        every = [mutant for source in sources.values() for mutant in source.mutants()]
        chosen = [mutant for mutant in every if not mutant.is_equivalent]
        equivalent = len(every) - len(chosen)
        if self.options.sample:
            seed = random.Random(self.options.seed)
            chosen = sorted(seed.sample(chosen, min(self.options.sample, len(chosen))), key=_place)
        self.report = {
            "equivalent": equivalent,
            **Trial(sources, reached, self.options).run(chosen),
        }
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
        self._memory = CHECKOUT / ".mutants.json"
        known = json.loads(self._memory.read_text()) if self._memory.exists() else {}
        self._known: dict[str, str] = known

    def run(self, mutants: Sequence[Mutant]) -> dict[str, Any]:
        """Try them until all are done or the budget is spent."""
        gc.collect()
        gc.freeze()
        ends = time.monotonic() + self._options.minutes * 60
        outcomes = {
            m: self._known[m.key]
            for m in mutants
            if m.key in self._known and (_is_noticed(self._known[m.key]) or not self._options.again)
        }
        print(f"{len(mutants)} mutants, {len(outcomes)} of them known already", flush=True)
        waiting = [m for m in mutants if m not in outcomes][::-1]
        if self._options.again:
            waiting = [m for m in waiting if m.key in self._known]
        running: dict[int, Mutant] = {}
        while running or (waiting and time.monotonic() < ends):
            while waiting and len(running) < self._options.processes and time.monotonic() < ends:
                mutant = waiting.pop()
                running[self._try(mutant)] = mutant
            pid, status = os.wait()
            mutant = running.pop(pid)
            noticed_by = self._learn(pid)
            outcomes[mutant] = noticed_by or _outcome(status)
            self._remember(mutant, outcomes[mutant])
            if not _is_noticed(outcomes[mutant]):
                print(f"{outcomes[mutant]:>9}  {mutant.title}", flush=True)
            if waiting and waiting[-1].module != mutant.module:
                print(f"{mutant.module}: {_rate(outcomes, mutant.module)}", flush=True)
        return {
            **_summary(outcomes, not_tried=len(mutants) - len(outcomes)),
            "worlds_to_record": sorted(self._worlds.noticed),
        }

    def _remember(self, mutant: Mutant, outcome: str) -> None:
        """Keep what came of it: that need not be tried again while its function stays as it is."""
        self._known[mutant.key] = outcome
        self._memory.write_text(json.dumps(self._known, indent=0, sort_keys=True))

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


def _rate(outcomes: dict[Mutant, str], module: str) -> str:
    known = [outcome for m, outcome in outcomes.items() if m.module == module]
    return f"{sum(map(_is_noticed, known))} of {len(known)} noticed"


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
    by = Counter(outcome for outcome in tried.values() if _is_noticed(outcome))
    return {
        "tried": len(tried),
        "noticed": noticed,
        "noticed_pct": round(100 * noticed / len(tried), 1) if tried else 0,
        "noticed_by": dict(sorted(by.items())),
        "not_tried": not_tried,
        "modules": modules,
        "survivors": [m.title for m in sorted(tried, key=_place) if not _is_noticed(tried[m])],
    }


def main() -> int:
    """Try mutants; 0 if enough of them were noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="of the scheduler; left out: all")
    parser.add_argument("--sample", type=int, help="try so many, chosen by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600, help="start no more after that")
    parser.add_argument("--tables", action="store_true", help="try only tests without examples")
    parser.add_argument("--seconds", type=float, default=10, help="of processor for one mutant")
    parser.add_argument("--search", type=int, default=0, help="worlds beside the recorded ones")
    parser.add_argument("--search-seconds", type=float, default=20, help="for one mutant")
    parser.add_argument(
        "--again", action="store_true", help="try those that survived before, no others"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--least", type=float, default=95, help="per cent to notice")
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
    return 0 if report["noticed_pct"] >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
