"""Apply changed fields of a project (API, command line, projects.yaml) to its specification.

Pure. It resolves null for each field, and rejects contradictions.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from decimal import Decimal
from typing import Any

from runai.hub_service.model.gpu_types import total
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, MilliGpu, gpu_text
from runai.hub_service.wire.amounts import clock_text
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import IdlePut, TimePut

_DEFAULTS = {field.name: field.default for field in fields(ProjectSpec)}
_NULLABLE = frozenset(
    {"parent", "quota", "build_quota", "limit", "weight", "node_types_build", "node_types_train"}
)
"""Fields for which null has a meaning.

Unlimited (quota, limit), derived (build quota, weight), any (types) or none (parent).
"""


def changed_project(spec: ProjectSpec, given: Mapping[str, Any]) -> ProjectSpec:
    """Return the project with these fields; null is the default unless it means something.

    Raises:
        InvalidRequest: the result is contradictory.
    """
    values = {n: _value(n, v, spec) for n, v in given.items()}
    if "quota" in values:
        values |= _quota(values["quota"])
    changed = replace(spec, **values)
    if changed.idle_job.release_s is not None:
        raise InvalidRequest(
            f"idle_job.release_s is {changed.idle_job.release_s} for project {changed.name}:"
            " a job does not go on without its GPUs.",
            hint="Give stop_s: the job is suspended, and can be resumed.",
            code="job_cannot_release",
        )
    for kind, rules in (("session", changed.time_session), ("job", changed.time_job)):
        if rules.default_s and rules.most_s and rules.default_s > rules.most_s:
            raise InvalidRequest(
                f"The default time limit of {clock_text(rules.default_s)} for {kind}s of project"
                f" {changed.name} is above their maximum of {clock_text(rules.most_s)}.",
                hint="Give a smaller default, or a larger maximum.",
                code="default_above_max_time",
            )
    if (
        changed.build_quota is not None
        and changed.quota is not None
        and changed.build_quota > changed.quota
    ):
        raise InvalidRequest(
            f"The build quota of {gpu_text(changed.build_quota)} is above the quota of"
            f" {gpu_text(changed.quota)} of project {changed.name}.",
            hint="It is the part of the quota that sessions may use.",
            code="build_quota_above_quota",
        )
    return changed


def _quota(value: MilliGpu | dict[str, MilliGpu | None] | None) -> dict[str, Any]:
    """Return the fields of a quota: its table if it is one, and the sum of that."""
    if isinstance(value, dict):
        return {"quota": total(value), "quota_by_type": value}
    return {"quota": value, "quota_by_type": None}


def _value(name: str, value: Any, spec: ProjectSpec) -> Any:  # noqa: ANN401  of any field
    """Convert a field of a request to the one of a project; keep what its rules do not set."""
    if value is None:
        return None if name in _NULLABLE else _DEFAULTS[name]
    if isinstance(value, Decimal):
        return MilliGpu(int(value * WHOLE_GPU))
    if isinstance(value, IdlePut | TimePut):
        return replace(getattr(spec, name), **value.model_dump(exclude_unset=True))
    if isinstance(value, dict):
        return {n: None if v is None else _value(n, v, spec) for n, v in value.items()}
    if isinstance(value, list):
        return tuple(value)
    return value
