"""Form fields of a project and of a request for a job, with their labels, values and hints.

Pure. The names are the fields of `ProjectPut` and `SubmitRequest`; `kind` tells the page's script
how to parse the input.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from runai.hub_service.wire.amounts import clock_text
from runai.hub_service.wire.schemas import ProjectView
from runai.hub_service.wire.workload_request import (
    Executor,
    RequestField,
    form_help_texts,
    request_fields,
)

NEW_PROJECT = ProjectView(name="", quota=0, build_quota=None)


class ProjectField(NamedTuple):
    """One form field: name, label, current value as text, and hint."""

    name: str
    label: str
    value: str
    hint: str
    kind: Literal["gpus", "number", "duration", "names"]


def project_fields(project: ProjectView, *, admin: bool) -> list[ProjectField]:
    """Return the fields that hub admins may change, or (members) admins of the project."""
    members = [
        ProjectField("members", "Members", _names(project.members), "user names", "names"),
        ProjectField("groups", "Groups", _names(project.groups), "groups of the hub", "names"),
    ]
    if not admin:
        return members
    amounts: list[tuple[str, str, float | None, str]] = [
        (
            "build_quota",
            "Build quota",
            project.build_quota,
            "part that sessions may use; empty: all",
        ),
        ("limit", "Limit", project.limit, "never more than this; empty: none"),
        (
            "never_lent",
            "Never lent",
            project.never_lent,
            "GPUs of the quota kept idle for its members",
        ),
    ]
    numbers: list[tuple[str, str, float | None, str]] = [
        (
            "weight",
            "Weight",
            project.weight,
            "share of idle GPUs beside other projects; empty: as the quota",
        ),
        ("priority", "Priority", project.priority, "higher gets idle GPUs first; 100 is usual"),
    ]
    protection = clock_text(project.min_runtime)
    protected = "before a job is paused: 30s, 20m, 8h"
    admins = _names(project.admins)
    table = project.quota_by_type
    parts = (f"{name}={'none' if v is None else _gpus(v)}" for name, v in (table or {}).items())
    quota = _gpus(project.quota) if table is None else ", ".join(parts)
    hint = "guaranteed GPUs, or by type: h100=2, *=4; empty: unlimited"
    return [
        ProjectField("quota", "Quota", quota, hint, "gpus"),
        *(ProjectField(name, label, _gpus(v), hint, "gpus") for name, label, v, hint in amounts),
        *(ProjectField(name, label, _gpus(v), hint, "number") for name, label, v, hint in numbers),
        ProjectField("min_runtime", "Minimum run time", protection, protected, "duration"),
        *members,
        ProjectField("admins", "Admins", admins, "may change members, and stop jobs", "names"),
    ]


_FIRST = ("name", "gpus", "workers", "priority", "elastic")
"""Fields of a request that everybody needs, in the form's order; the rest folds away."""


def request_form_fields(
    executor: Executor,
) -> tuple[list[tuple[RequestField, str]], list[tuple[RequestField, str]]]:
    """Return the fields of the form for a job with their hints: the first ones, and the rest."""
    hints = form_help_texts()
    fields = {
        field.name: (field, hints[field.name])
        for field in request_fields()
        if field.option.label and field.option.only_on in {None, executor}
    }
    return [fields.pop(name) for name in _FIRST], [*fields.values()]


def _gpus(amount: float | None) -> str:
    return "" if amount is None else f"{amount:g}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
