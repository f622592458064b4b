"""Expected sums of the ledger, to the millisecond: reported GPUs times watched seconds.

Simple on purpose, a list of stretches: the GPUs that each scope held, and for how long. A life of
the service adds to the sums that it found in the database; afterwards the database must have
exactly the sums of that life over the watched time that was written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from runai.hub_service.ledger import DeviceAllocation, Ledger, schema
from runai.hub_service.ledger.integration import GAP_S
from runai.hub_service.ledger.totals import Scope

ABOUT_GPU_S = 0.001
"""Tolerance for rounding errors of added floats."""


WATCHED = Scope("watched")


class _Stretch(NamedTuple):
    since: float
    until: float
    milli: Mapping[Scope, int]


class Meter:
    """Independent count of one life of a ledger."""

    def __init__(self, ledger: Ledger, found: Mapping[Scope, float]) -> None:
        """Start before the ledger's first report; `found` are the database's sums at that time."""
        self._ledger = ledger
        self._initial_sums = dict(found)
        self._forgotten: set[str] = set()
        self._stretches: list[_Stretch] = []
        self._milli: Mapping[Scope, int] = {}
        self._at: float | None = None
        sums, forget = ledger._integration, ledger.forget
        advance, set_allocations = sums.advance, sums.set_allocations

        def watch_and_advance(at: float) -> None:
            self._watch(at)
            advance(at)

        def record_allocations(at: float, allocations: Sequence[DeviceAllocation]) -> None:
            set_allocations(at, allocations)  # it advances first
            self._milli = _by_scope(allocations)

        def forget_workload(workload: str) -> None:
            forget(workload)
            self._forget(workload)

        sums.advance, sums.set_allocations = watch_and_advance, record_allocations  # type: ignore[method-assign]
        ledger.forget = forget_workload  # type: ignore[method-assign]

    def _watch(self, at: float) -> None:
        if self._at is not None and at - self._at <= GAP_S and at > self._at:
            self._stretches.append(_Stretch(self._at, at, self._milli))
        self._at = at if self._at is None else max(at, self._at)

    def _forget(self, workload: str) -> None:
        """Count a later workload of the name from zero."""

        def without(milli: Mapping[Scope, int]) -> Mapping[Scope, int]:
            return {scope: amount for scope, amount in milli.items() if scope.workload != workload}

        self._stretches = [s._replace(milli=without(s.milli)) for s in self._stretches]
        self._milli = without(self._milli)
        self._initial_sums = {
            s: amount for s, amount in self._initial_sums.items() if s.workload != workload
        }
        self._forgotten.add(workload)

    def milli_gpu_s(self, watched_s: float = math.inf) -> Counter[Scope]:
        """Return each scope's milli-GPU-seconds in the first `watched_s` of this life."""
        sums: Counter[Scope] = Counter()
        for stretch in self._stretches:
            lasts = min(stretch.until - stretch.since, watched_s)
            watched_s -= lasts
            for scope, milli in stretch.milli.items():
                sums[scope] += milli * lasts  # type: ignore[assignment]
        return sums

    def wrong_sums(self) -> Iterator[str]:
        """Yield a sentence for each sum of the ledger that differs from this count."""
        expected = self.milli_gpu_s()
        for scope, series in self._ledger._by_scope.items():
            if scope.kind in {"reclaimed", "watched"}:
                continue
            have = self._ledger._settled(series).totals.allocated_s
            must = self._initial(scope) + expected[scope] / 1000
            if abs(have - must) > ABOUT_GPU_S:
                yield f"the ledger has {have:.3f} GPU-s of {_name(scope)}, which held {must:.3f}"
        for scope in expected.keys() - self._ledger._by_scope.keys():
            yield f"the ledger has nothing of {_name(scope)}"

    def wrong_stored_sums(self, now: Mapping[Scope, float]) -> Iterator[str]:
        """Yield a sentence for each sum in the database that differs from this count."""
        watched_s = now.get(WATCHED, 0.0) - self._initial(WATCHED)
        expected = self.milli_gpu_s(watched_s)
        for scope, have in now.items():
            if scope.workload in self._forgotten or scope == WATCHED:
                continue  # it may be written already or not
            must = self._initial(scope) + expected[scope] / 1000
            if abs(have - must) > ABOUT_GPU_S:
                yield (
                    f"the database has {have:.3f} GPU-s of {_name(scope)}, "
                    f"which had held {must:.3f} in the {watched_s:.3f} s that it has"
                )

    def _initial(self, scope: Scope) -> float:
        return self._initial_sums.get(scope, 0.0)


def stored_sums(database: Path) -> dict[Scope, float]:
    """Read the GPU-seconds of each open scope from a ledger's file."""
    if not database.exists():
        return {}
    engine = sa.create_engine(f"sqlite:///{database}")
    series = schema.series.c
    query = sa.select(
        *(series[name] for name in Scope._fields), series.held_s, series.allocated_s
    ).where(series.closed.is_(None))
    with closing(engine.connect()) as connection:
        rows = connection.execute(query).all()
    engine.dispose()
    return {
        (scope := Scope(*row[:-2])): row.held_s if scope == WATCHED else row.allocated_s
        for row in rows
    }


def _by_scope(allocations: Sequence[DeviceAllocation]) -> Mapping[Scope, int]:
    sums: Counter[Scope] = Counter()
    for allocation in allocations:
        for scope in (
            Scope("all"),
            Scope("project", project=allocation.project),
            Scope("user", user=allocation.user),
            Scope("member", project=allocation.project, user=allocation.user),
            Scope(
                "workload",
                project=allocation.project,
                user=allocation.user,
                workload=allocation.workload,
            ),
            Scope("node", node=allocation.node),
            Scope("device", device=allocation.device),
        ):
            sums[scope] += allocation.milli
    return sums


def _name(scope: Scope) -> str:
    return " ".join(part for part in scope if part)
