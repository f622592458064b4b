"""The wire contract of questions: why does it wait and until when, and what if it were otherwise.

Knows the messages only. Asked by the command line and pages; answered by `answers`.
"""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from runai.hub_service.wire.base_schema import Gpus, ProjectName, Wire
from runai.hub_service.wire.schemas import ExpectedStartView, ReasonView, SubmitRequest


class HolderView(Wire):
    """Who holds some of what a waiting workload needs; nameless where the caller may not know."""

    workload: str
    project: str
    user: str
    gpus: float
    until: datetime | None
    is_estimated: bool


MOST_ADDED = 1000
"""Workers in one question."""


class CounterfactualView(Wire):
    """What would let it start; the scheduler was asked, and it would."""

    text: str
    protected_until: datetime | None = None
    """From when on others may take what would have to be given back."""


class ExplanationView(Wire):
    """Why a workload waits, at length. `reason` None: it does not wait."""

    workload: str
    at: datetime
    reason: ReasonView | None = None
    ahead: tuple[str, ...] = ()
    """The first in its project's queue before it."""
    holders: tuple[HolderView, ...] = ()
    counterfactuals: tuple[CounterfactualView, ...] = ()
    expected_start: ExpectedStartView | None = None


Setting = Literal[
    "quota", "build_quota", "limit", "never_lent", "weight", "priority", "min_runtime"
]


class SettingChange(Wire):
    """A project's setting as it would be; None: no bound, or the default."""

    project: ProjectName
    setting: Setting
    value: Gpus | None


class PlanQuestion(Wire):
    """What to change before the scheduler is asked. Nothing of it is carried out."""

    add: Annotated[tuple[SubmitRequest, ...], Field(max_length=100)] = ()
    set: Annotated[tuple[SettingChange, ...], Field(max_length=100)] = ()
    end: Annotated[tuple[str, ...], Field(max_length=1000)] = ()
    """Ids of workloads that would have ended."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        """Refuse a question whose answer would keep the scheduler from its work."""
        if sum(added.workers * (added.array or 1) for added in self.add) > MOST_ADDED:
            raise ValueError(f"ask about at most {MOST_ADDED} workers at once")
        return self


Outcome = Literal["runs", "starts", "starts later", "moves", "resizes", "stops", "waits", "gone"]


class Effect(Wire):
    """What would become of one workload, beside what becomes of it now."""

    workload: str
    project: str
    user: str
    is_added: bool
    gpus: float
    before: Outcome | None
    """None: it was not there."""
    after: Outcome
    reason: ReasonView | None = None


class ProjectEffect(Wire):
    """What a project would hold, beside what it holds by the present plan."""

    name: str
    quota: float | None
    fair_share_before: float
    fair_share: float
    allocated_before: float
    allocated: float


class WhatIf(Wire):
    """What would be different. Workloads that the caller may not see are only counted."""

    at: datetime
    effects: list[Effect]
    others: dict[str, int]
    """How many workloads of others would start, stop, wait …"""
    projects: list[ProjectEffect]
