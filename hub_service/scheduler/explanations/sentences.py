"""Sentences of counterfactuals, naming only workloads that the reader may know (X)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from runai.hub_service.scheduler.model.explanation import Change, ChangeRequest, SetProject
from runai.hub_service.scheduler.model.quantity import count_text, duration_text, gpu_text
from runai.hub_service.scheduler.model.snapshot import Workload
from runai.hub_service.scheduler.state.project_tree import ProjectNode

_MAX_NAMES = 4
_AMOUNTS = {"quota": "quota", "build_quota": "build quota", "limit": "limit"}


class SentenceFormatter:
    """Formatter of changes as sentences for one reader."""

    def __init__(
        self, now: int, projects: dict[str, ProjectNode], may_know: Callable[[Workload], bool]
    ) -> None:
        """Store `may_know`, the check for workloads that may be named."""
        self._now = now
        self._projects = projects
        self._may_know = may_know

    def label(self, workload: Workload) -> str:
        """Return a workload's name, or only its kind and project."""
        if not self._may_know(workload):
            return f"a {workload.kind} of {workload.project}"
        if workload.kind == "session" and workload.user:
            return f"the session of {workload.user}"
        return workload.name

    def released(self, project: str, amount: int, overage: int, until: int) -> str:
        """Format the milli-GPU that a project would release, and the end of its protection."""
        if amount <= overage:
            what = f"{gpu_text(amount)} of the {count_text(overage)} it holds over its share"
        else:
            what = f"{count_text(amount)} ({gpu_text(overage)} of it over its share)"
        left = until - self._now
        guard = f"; protected for {_more(duration_text(left))}" if left > 0 else ""
        return f"would start if {project} gave back {what}{guard}"

    def removed(self, workloads: Sequence[Workload], verb: str) -> str:
        """Format the workloads that would have to end."""
        names = [self.label(workload) for workload in workloads]
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        return f"would start if {_joined(names[:_MAX_NAMES], is_complete=not more)}{more} {verb}"

    def moves(self) -> str:
        """Format that running jobs would have to be moved."""
        return "would start if running jobs could be moved together (policy phase consolidate)"

    def settings(self, changes: Iterable[Change]) -> str:
        """Format the changed settings."""
        parts = [self._setting(c) for c in changes if isinstance(c, SetProject)]
        return f"would start if {' and '.join(parts)}"

    def _setting(self, change: SetProject) -> str:
        project = self._projects[change.project]
        if change.setting == "never_lent":
            return f"{change.project} lent the {count_text(project.never_lent)} it never lends"
        before = {
            "quota": project.quota,
            "build_quota": project.build_quota,
            "limit": project.limit,
        }[change.setting]
        assert change.value is not None, "raised amounts are numbers"
        word, amount = _AMOUNTS[change.setting], count_text(change.value)
        return f"{change.project}'s {word} were {amount} instead of {gpu_text(before)}"

    def changed_request(self, workload: Workload, change: ChangeRequest) -> str:
        """Format the changed request of the workload."""
        if change.workers is not None:
            workers = f"{change.workers} worker{'' if change.workers == 1 else 's'}"
            return f"would start with {workers} instead of {workload.minimum}"
        if change.gpus is not None:
            before = gpu_text(workload.workers[0].gpus)
            each = " for each worker" if len(workload.workers) > 1 else ""
            return f"would start with {count_text(change.gpus)}{each} instead of {before}"
        if change.priority is not None:
            return f"would start with priority {change.priority} instead of {workload.rank}"
        if change.max_runtime is not None:
            limit = duration_text(change.max_runtime)
            return f"would start now with a limit of {limit} in time (--time)"
        if change.preemptible:
            return "would start if it were preemptible (and may then be stopped at any time)"
        return "would start if it did not ask for certain nodes"


def _more(duration: str) -> str:
    """Insert "more": "5 minutes" becomes "5 more minutes"."""
    amount, _, unit = duration.partition(" ")
    return f"{amount} more {unit}"


def _joined(names: Sequence[str], *, is_complete: bool) -> str:
    """List names, with "and" before the last one if the list is complete."""
    if len(names) > 1 and is_complete:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return ", ".join(names)
