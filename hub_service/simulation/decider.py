"""What the engine asks for decisions: a cluster's picture kept up to date, and `decide` on it.

The only place that knows how the core is driven. Used by `engine`, one for each cluster that
decides by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runai.hub_service.scheduler.cycle import decide
from runai.hub_service.scheduler.model import Node, Plan, Policy, Project, Snapshot, Workload

__all__ = ["Decider"]


class Decider:
    """One cluster as the core sees it."""

    def __init__(self, nodes: Sequence[Node], projects: Sequence[Project], policy: Policy) -> None:
        """Begin with an empty cluster."""
        self._nodes = tuple(nodes)
        self._projects = tuple(projects)
        self._policy = policy
        self._workloads: dict[str, Workload] = {}

    def apply(self, changed: Iterable[Workload], gone: Iterable[str]) -> None:
        """Take workloads that are new or other than before, and forget others."""
        for name in gone:
            self._workloads.pop(name, None)
        self._workloads.update({workload.name: workload for workload in changed})

    def decide(self, now: int) -> Plan:
        """Decide about what is there now."""
        return decide(
            Snapshot(
                now=now,
                policy=self._policy,
                nodes=self._nodes,
                projects=self._projects,
                workloads=tuple(self._workloads.values()),
            )
        )
