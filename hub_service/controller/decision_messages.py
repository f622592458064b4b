"""Messages between the service and its decision worker, and their frames on a pipe.

A request carries the difference of two snapshots, a reply the difference of two plans: of tens of
thousands of waiting workloads few change. Both ends are processes of one service, and the pipe is
theirs alone, so that messages may be pickled.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runai.hub_service.scheduler.explanations.outcomes import OutcomeDifference
from runai.hub_service.scheduler.model.explanation import ExpectedStart, SetProject
from runai.hub_service.scheduler.model.snapshot import (
    Decision,
    Plan,
    ProjectShare,
    Reason,
    Snapshot,
    Wait,
    Workload,
)
from runai.hub_service.scheduler.model.what_if import changed, with_workloads
from runai.hub_service.scheduler.state.cluster_index import SnapshotChanges

VisibleNames = frozenset[str]
"""Workloads that an answer may name; `vision/sweep-` is all elements of an array."""

LENGTH_BYTES = 8
"""Size of a frame's header: the length of the pickled message, big-endian."""


@dataclass(frozen=True, slots=True)
class Decide:
    """Request for the next plan: of a whole snapshot, or of changes to the last one."""

    update: Snapshot | SnapshotChanges


@dataclass(frozen=True, slots=True)
class Explain:
    """Question why a workload waits in the last plan."""

    workload: str
    known: VisibleNames


@dataclass(frozen=True, slots=True)
class WhatIfQuestion:
    """Question for the plan of a snapshot with changes, which are not kept."""

    changes: SnapshotChanges
    foresee: tuple[str, ...] = ()
    """Workloads with an expected start in the answer."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Question which workloads fare otherwise with changes, which are not kept."""

    known: VisibleNames
    added: tuple[Workload, ...] = ()
    ended: VisibleNames = frozenset()
    settings: tuple[SetProject, ...] = ()
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of projects whose quota is a table by GPU type."""

    def applied_to(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the changes."""
        remaining = tuple(w for w in snapshot.workloads if not is_known(w, self.ended))
        other = changed(replace(snapshot, workloads=remaining), self.settings)
        projects = tuple(replace(p, **self.tables.get(p.name, {})) for p in other.projects)
        return with_workloads(replace(other, projects=projects), self.added)


@dataclass(frozen=True, slots=True)
class Foresee:
    """Request for the expected start of each waiting workload, in the background."""


Question = Explain | WhatIfQuestion | Compare | Foresee


@dataclass(frozen=True, slots=True)
class Request:
    """A numbered request; its reply has the same number."""

    number: int
    payload: Decide | Question


@dataclass(frozen=True, slots=True)
class Waits:
    """Consecutive waits as three columns: a tenth of their size and time as objects."""

    workloads: tuple[str, ...]
    reasons: tuple[Reason, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """A plan as parts: ranges of decisions of an earlier plan, and new decisions."""

    parts: tuple[range | Waits | Decision, ...]
    projects: Mapping[str, ProjectShare]


@dataclass(frozen=True, slots=True)
class Explained:
    """A workload's wait with its explanation (None: it does not wait), and the plan's time."""

    now: int
    wait: Wait | None


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Expected starts as of a time in seconds."""

    now: int
    starts: Mapping[str, ExpectedStart]


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """The plan of a changed snapshot, and the expected starts that were asked for."""

    plan: PlanDifference
    starts: Mapping[str, ExpectedStart]


@dataclass(frozen=True, slots=True)
class Failed:
    """The question has no answer: half a sentence that says why."""

    why: str


Answer = PlanDifference | Explained | Foreseen | WhatIfResult | OutcomeDifference | Failed


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the request of this number."""

    number: int
    answer: Answer


def is_known(workload: Workload, known: VisibleNames) -> bool:
    """Return True if an answer may name a workload."""
    name = workload.name
    return name in known or (
        workload.array_index is not None and f"{name.rpartition('-')[0]}-" in known
    )


def frame(message: Request | Reply | Answer) -> bytes:
    """Return the message as bytes, after its length."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH_BYTES) + body


def difference(before: Plan, after: Plan) -> PlanDifference:
    """Return `after` as ranges of the decisions of `before`, if they are the same objects."""
    index = {id(decision): number for number, decision in enumerate(before.decisions)}
    parts: list[range | Waits | Decision] = []
    reused = range(0)
    waits: list[Wait] = []

    def flush() -> None:  # ends the current range or run of waits
        nonlocal reused
        if reused:
            parts.append(reused)
            reused = range(0)
        if waits:
            columns = zip(*((w.workload, w.reason, w.position) for w in waits), strict=True)
            parts.append(Waits(*columns))
            waits.clear()

    for decision in after.decisions:
        number = index.get(id(decision))
        if number is not None:
            if waits or number != reused.stop:
                flush()
                reused = range(number, number)
            reused = range(reused.start, number + 1)
        elif isinstance(decision, Wait) and decision.explanation is None:
            if reused:
                flush()
            waits.append(decision)
        else:
            flush()
            parts.append(decision)
    flush()
    return PlanDifference(tuple(parts), after.projects)


def patched(before: Plan, changes: PlanDifference) -> Plan:
    """Return the plan that differs from `before` by `changes`."""
    decisions: list[Decision] = []
    for part in changes.parts:
        match part:
            case range():
                decisions += before.decisions[part.start : part.stop]
            case Waits():
                decisions += [
                    Wait(workload=workload, reason=reason, position=position)
                    for workload, reason, position in zip(
                        part.workloads, part.reasons, part.positions, strict=True
                    )
                ]
            case _:
                decisions.append(part)
    return Plan(decisions=tuple(decisions), projects=changes.projects)
