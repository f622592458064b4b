"""Which tests run which lines of the scheduler, and in which order a mutant is shown to them.

Knows what sort a test is and what it takes. Runs every test once, watching. Used by `mutants`.
"""

from __future__ import annotations

import sys
import time
import types
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

SLOWEST_S = 4.0
"""Tests that take longer, with as few examples as here, are left to the suite itself."""
SORTS = ("table", "digest", "story", "property")
"""What a test is, in the order in which they are tried: who says what is wrong, then who is quick.

A digest or a story only says that a plan is another one than was recorded.
"""
_RECORDS = {"test_digests.py": "digest", "test_stories.py": "story"}


class Reached:
    """Which tests run which lines, and how long each takes."""

    def __init__(
        self, items: Sequence[pytest.Item], prefix: str, *, trusts_records: bool = False
    ) -> None:
        """Run every test once, watching these files: tables by line, properties by function.

        Recorded worlds are not watched: twenty of them together run nearly everything. Where they
        are trusted they are not even run: somebody has just done so.
        """
        self.seconds: dict[pytest.Item, float] = {}
        self.by_line: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
        self.everywhere: list[pytest.Item] = []
        self.failed: list[str] = []
        for item in items:
            if item.path.name in _RECORDS:
                self.everywhere.append(item)
                if trusts_records:
                    self.seconds[item] = 1.0
                else:
                    self._time(item)
                continue
            lines: set[tuple[str, int]] = set()
            is_table = sort_of(item) == "table"

            def local(frame: types.FrameType, _event: str, _arg: object, lines=lines) -> Any:
                lines.add((frame.f_code.co_filename, frame.f_lineno))
                return local

            def watch(
                frame: types.FrameType,
                _event: str,
                _arg: object,
                lines=lines,
                local=local if is_table else None,
            ) -> Any:
                code = frame.f_code
                if not code.co_filename.startswith(prefix):
                    return None
                if local is None:
                    lines.add((code.co_filename, code.co_firstlineno))
                return local

            sys.settrace(watch)
            self._time(item)
            sys.settrace(None)
            if self.seconds[item] > SLOWEST_S:
                continue
            for line in lines:
                self.by_line[line].append(item)
        self.noticed: dict[str, int] = defaultdict(int)
        """How many mutants each test noticed, by its name."""

    def _time(self, item: pytest.Item) -> None:
        began = time.process_time()
        if not passes(item):
            self.failed.append(item.nodeid)
        self.seconds[item] = time.process_time() - began

    def tests(self, path: str, line: int, begins: int) -> list[pytest.Item]:
        """Give the tests that run a line of the function that begins on another.

        Quick ones that noticed something come first, then the quickest.
        """
        tables = self.by_line.get((path, line), [])
        others = self.by_line.get((path, begins), [])
        others = [item for item in others if sort_of(item) != "table"]
        found = [*tables, *others, *self.everywhere]
        return sorted(dict.fromkeys(found), key=self._price)

    def _price(self, item: pytest.Item) -> tuple[int, float]:
        price = (self.seconds[item] + 0.002) / (1 + self.noticed[item.nodeid])
        return SORTS.index(sort_of(item)), price


def sort_of(item: pytest.Item) -> str:
    """Say what a test is."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        return "property"
    return _RECORDS.get(item.path.name, "table")


def passes(item: pytest.Item) -> bool:
    """Run a test; tell whether it passes."""
    reports = runtestprotocol(item, log=False, nextitem=None)
    return all(report.passed or report.skipped for report in reports)
