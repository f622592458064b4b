"""What an explanation says: counterfactuals, the expected start, who is ahead, who holds what (X).

Knows the words of an answer, which compare by value and travel as JSON (`plan_wire`), and
the changes of a snapshot that a counterfactual is made of. How answers are found is
`counterfactuals`' and `forecast`'s; what a change does to a snapshot is `what_if`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from runai.hub_service.scheduler.model.quantity import MilliGpu, Name, Positive

GpuSetting = Literal["quota", "build_quota", "limit", "never_lent"]
WholeSetting = Literal["weight", "priority", "min_runtime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWorkloads:
    """These workloads end, or give their devices back and do not queue again."""

    kind: ClassVar[Literal["end"]] = "end"
    workloads: tuple[Name, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetProject:
    """A setting of a project becomes `value`: milli-GPU for amounts; None is no bound."""

    kind: ClassVar[Literal["set"]] = "set"
    project: Name
    setting: GpuSetting | WholeSetting
    value: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOtherwise:
    """A workload asks for something else; None leaves that part as it is."""

    kind: ClassVar[Literal["ask"]] = "ask"
    workload: Name
    gpus: MilliGpu | None = None
    """For each worker."""
    workers: Positive | None = None
    priority: int | None = None
    preemptible: bool | None = None
    anywhere: bool = False
    """Without node selector, GPU types and named nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowMoves:
    """The policy's phases name `consolidate` too (R10)."""

    kind: ClassVar[Literal["consolidate"]] = "consolidate"


Change = EndWorkloads | SetProject | AskOtherwise | AllowMoves


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """What would have to be otherwise for a workload to start; tried before it is told."""

    changes: tuple[Change, ...]
    text: str
    protected_until: int | None = None
    """When those who would give something back may be asked to (R8), in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStart:
    """When a workload starts if nothing is submitted any more, in seconds as `now` is.

    `at` None: not as long as only what runs ends. `latest` None: no end can be told.
    """

    at: int | None
    earliest: int | None
    latest: int | None
    is_estimated: bool
    """Whether it rests on run times that nobody stated."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds some of what a waiting workload needs, and until when."""

    workload: str
    """Empty where the reader may not know it."""
    project: Name
    user: str = ""
    gpus: MilliGpu
    until: int | None
    """When it is expected to end; None where nothing tells."""
    is_estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is told beside the code, the sentence and the place in the queue."""

    ahead: tuple[Name, ...] = ()
    """The first in its project's queue before it, names of those that the reader may see."""
    holders: tuple[Holder, ...] = ()
    """Who holds most of what it needs."""
    counterfactuals: tuple[Counterfactual, ...] = ()
    """The nearest first; empty where nothing small was found that would help."""
    expected_start: ExpectedStart
