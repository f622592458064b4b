"""Types of an explanation: counterfactuals, expected start, queue and device holders (X).

They compare by value and are serialized as JSON (`plan_json`). `Change` types are the edits of a
snapshot that a counterfactual consists of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from runai.hub_service.scheduler.model.quantity import MilliGpu, Name, Positive

GpuSetting = Literal["quota", "build_quota", "limit", "never_lent"]
WholeSetting = Literal["weight", "priority", "min_runtime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWorkloads:
    """Remove workloads: they end, or release their devices and do not queue again."""

    kind: ClassVar[Literal["end"]] = "end"
    workloads: tuple[Name, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetProject:
    """Set a project's setting to `value`: milli-GPU for amounts; None is no bound."""

    kind: ClassVar[Literal["set"]] = "set"
    project: Name
    setting: GpuSetting | WholeSetting
    value: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest:
    """Change a workload's request; None leaves that field unchanged."""

    kind: ClassVar[Literal["ask"]] = "ask"
    workload: Name
    gpus: MilliGpu | None = None
    """GPUs per worker."""
    workers: Positive | None = None
    priority: int | None = None
    preemptible: bool | None = None
    max_runtime: Positive | None = None
    """Limit of its running time, in seconds."""
    anywhere: bool = False
    """True removes the node selector, GPU types and named nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowMoves:
    """Add `consolidate` to the policy's phases (R10)."""

    kind: ClassVar[Literal["consolidate"]] = "consolidate"


Change = EndWorkloads | SetProject | ChangeRequest | AllowMoves


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """Changes with which a workload starts, verified by running the scheduler on them."""

    changes: tuple[Change, ...]
    text: str
    protected_until: int | None = None
    """Time in seconds until which the victims are protected from preemption (R8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStart:
    """When a workload starts if nothing more is submitted; seconds on the clock of `now`.

    `at` is None if the workload does not start merely because running workloads end. `latest` is
    None if no upper bound is known.
    """

    at: int | None
    earliest: int | None
    latest: int | None
    is_estimated: bool
    """True if it depends on estimated run times, not on stated ones."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A workload on devices that a waiting workload needs, and its expected end."""

    workload: str
    """Empty if the reader may not see its name."""
    project: Name
    user: str = ""
    gpus: MilliGpu
    until: int | None
    """Expected end in seconds; None if unknown."""
    is_estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Details of a waiting workload beyond its code, sentence and queue position."""

    ahead: tuple[Name, ...] = ()
    """First workloads ahead in its project's queue; only names that the reader may see."""
    holders: tuple[Holder, ...] = ()
    """Workloads on most of the capacity that it needs."""
    counterfactuals: tuple[Counterfactual, ...] = ()
    """Smallest change first; empty if no small change would help."""
    expected_start: ExpectedStart
