"""Time limits of workloads: seconds of running over all attempts, the end, the warning before it.

Pure. Running begins when a workload gets its place, and ends when it is told to stop or ends by
itself; so neither a wait nor a pause counts, nor the grace of a stop.
"""

from math import ceil

from runai.hub_service.model.records import ProjectSpec, TimeRules, WorkloadRecord
from runai.hub_service.scheduler.model.quantity import duration_text
from runai.hub_service.wire.amounts import clock_text
from runai.hub_service.wire.errors import InvalidRequest

WARNING = "at its time limit of "
"""Words by which a warning is found in a history."""
WARN_PART = 10
"""Part of a short limit that is enough for the warning: a tenth."""


def rules_of(project: ProjectSpec, kind: str) -> TimeRules:
    """Return a project's rules for sessions or jobs."""
    return project.time_session if kind == "session" else project.time_job


def limit_of(
    requested: int | None, expected: int | None, kind: str, project: ProjectSpec
) -> int | None:
    """Return the limit of a new workload: as asked for, else the project's.

    Raises:
        InvalidRequest: it is above the project's maximum, or below the expected runtime.
    """
    rules = rules_of(project, kind)
    if requested is not None and rules.most_s is not None and requested > rules.most_s:
        raise InvalidRequest(
            f"A time limit of {clock_text(requested)} is above the maximum of"
            f" {clock_text(rules.most_s)} for {kind}s of project {project.name}.",
            hint=f"Give --time {clock_text(rules.most_s)} or less, save checkpoints and submit the"
            " rest again, or ask an admin of the project for more.",
            code="over_max_time",
        )
    project_limit = rules.default_s if rules.default_s is not None else rules.most_s
    limit = project_limit if requested is None else requested
    if limit is not None and expected is not None and expected > limit:
        limit_name = (
            "its time limit" if requested is not None else f"the limit of project {project.name}"
        )
        raise InvalidRequest(
            f"An expected runtime of {clock_text(expected)} is longer than {limit_name} of"
            f" {clock_text(limit)}.",
            hint=f"Give --time {clock_text(expected)} or more, or a shorter --expected-runtime.",
            code="over_time_limit",
        )
    return limit


def seconds_run(record: WorkloadRecord, now: float) -> float:
    """Return the seconds that a workload has run, over all attempts."""
    since = record.runs_since
    return record.ran_s + (max(0.0, now - since) if since is not None else 0.0)


def ends_at(record: WorkloadRecord) -> float | None:
    """Return when the limit ends a running workload; None: it does not run, or has no limit."""
    limit, since = record.spec.max_runtime, record.runs_since
    return None if limit is None or since is None else since + max(0.0, limit - record.ran_s)


def has_run_out(record: WorkloadRecord, now: float) -> bool:
    """Return True if a workload has used up its time."""
    limit, end = record.spec.max_runtime, ends_at(record)
    if end is not None:
        return now >= end
    return limit is not None and record.ran_s >= limit  # it does not run now


def warns_at(record: WorkloadRecord, project: ProjectSpec | None) -> float | None:
    """Return when the owner is warned of the end; None: it does not run, or has no limit."""
    limit, end = record.spec.max_runtime, ends_at(record)
    if limit is None or end is None:
        return None
    rules = TimeRules() if project is None else rules_of(project, record.spec.kind)
    return end - min(rules.warn_s, limit / WARN_PART)


def bound_for_core(limit: int, ran_s: float, since: float | None, started: int | None) -> int:
    """Return the core's bound of an attempt: what is left, and what passed since `started`.

    `since` is when it began to run, `started` the earliest start of the workers that the core is
    shown, each None without one.
    """
    left = limit - ran_s
    if since is not None and started is not None:
        left -= started - since
    return max(0, ceil(left))


def limit_within(requested: int | None, rules: TimeRules) -> int | None:
    """Return the limit of a Job that was created outside this service, at most its project's."""
    limit = rules.default_s if requested is None else requested
    return min((each for each in (limit, rules.most_s) if each is not None), default=None)


def end_text(record: WorkloadRecord) -> str:
    """Return why a workload was stopped for good, and the way out."""
    spec = record.spec
    limit = spec.max_runtime or 0
    text = f"ran {clock_text(limit)}, its time limit"
    if spec.kind == "session":
        return f"{text}: start it again to go on"
    checkpoint_text = (
        f"; its checkpoints are in {record.checkpoint_dir}" if record.checkpoint_dir else ""
    )
    longer = clock_text(limit + ceil(limit / 2))
    return f"{text}: submit it again, with --time {longer} or so{checkpoint_text}"


def warning_text(record: WorkloadRecord, now: float) -> str:
    """Return the warning before the end."""
    end, limit = ends_at(record), record.spec.max_runtime or 0
    left = duration_text(max(0, round((now if end is None else end) - now)))
    return f"ends in {left}, {WARNING}{clock_text(limit)}: save what you need"
