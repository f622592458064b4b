"""The wire contract of explanations: waiting reasons, expected starts and what-if questions."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from runai.hub_service.wire.amounts import LONGEST_S, NUMBER
from runai.hub_service.wire.base_schema import Line, ProjectName, Wire
from runai.hub_service.wire.schemas import ExpectedStartView, ProjectPut, Quota, ReasonView
from runai.hub_service.wire.workload_request import SubmitRequest


class HolderView(Wire):
    """A workload that holds GPUs which a waiting one needs.

    Names are empty where the caller may not see them.
    """

    workload: str
    project: str
    user: str
    gpus: float
    until: datetime | None
    is_estimated: bool


MOST_ADDED = 1000
"""Maximum number of added workers in one question."""


class CounterfactualView(Wire):
    """A change that would let the workload start, confirmed by the scheduler."""

    text: str
    protected_until: datetime | None = None
    """When the minimum run time of the workload to be preempted ends."""


class ExplanationView(Wire):
    """Detailed explanation of a workload's wait. `reason` None: it does not wait."""

    workload: str
    at: datetime
    reason: ReasonView | None = None
    ahead: tuple[str, ...] = ()
    """The first workloads before it in its project's queue."""
    holders: tuple[HolderView, ...] = ()
    counterfactuals: tuple[CounterfactualView, ...] = ()
    expected_start: ExpectedStartView | None = None


SettingName = Literal[
    "quota", "build_quota", "limit", "never_lent", "weight", "priority", "min_runtime"
]


class SettingChange(Wire):
    """A hypothetical value of one setting of a project.

    `value` is in GPUs, or a whole number; `min_runtime` is a duration such as 20m, or seconds.
    None: no bound of `quota` or `limit`, the default of `weight` and `build_quota`, 0 for
    `never_lent`; else invalid. `quota` may be a table by GPU type.
    """

    project: ProjectName
    setting: SettingName
    value: Quota | Annotated[int, Field(ge=0, le=LONGEST_S), NUMBER] | None

    @model_validator(mode="before")
    @classmethod
    def _as_in_a_project(cls, given: Any) -> Any:  # noqa: ANN401  not validated yet
        """Check and convert the value as the project's own setting."""
        setting: Any = given.get("setting") if isinstance(given, dict) else None
        if setting not in get_args(SettingName):
            return given
        project = ProjectPut.model_validate({setting: given.get("value")})
        return given | {"value": getattr(project, setting)}


class PlanQuestion(Wire):
    """Hypothetical changes to plan with; the service applies none of them."""

    add: Annotated[tuple[SubmitRequest, ...], Field(max_length=100)] = ()
    set: Annotated[tuple[SettingChange, ...], Field(max_length=100)] = ()
    end: Annotated[tuple[Line, ...], Field(max_length=1000)] = ()
    """Ids of workloads to treat as ended."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        """Reject questions large enough to delay scheduling."""
        if sum(added.workers * (added.array or 1) for added in self.add) > MOST_ADDED:
            raise ValueError(f"ask about at most {MOST_ADDED} workers at once")
        return self


Outcome = Literal["runs", "starts", "starts later", "moves", "resizes", "stops", "waits", "gone"]


class Effect(Wire):
    """Outcome of one workload with the change, beside its outcome without."""

    workload: str
    project: str
    user: str
    is_added: bool
    gpus: float
    before: Outcome | None
    """None: it does not exist without the change."""
    after: Outcome
    reason: ReasonView | None = None


class ProjectEffect(Wire):
    """A project's GPUs with the change, beside its GPUs in the present plan."""

    name: str
    quota: float | None
    fair_share_before: float
    fair_share: float
    allocated_before: float
    allocated: float


class WhatIf(Wire):
    """Answer to a what-if question; workloads the caller may not see are only counted."""

    at: datetime
    effects: list[Effect]
    others: dict[str, int]
    """Number of other users' workloads that would start, stop, wait …"""
    projects: list[ProjectEffect]
