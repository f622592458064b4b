"""What the engine asks for decisions: the core's index of a cluster, kept in step with changes.

The only place that knows how the core is driven. Used by `engine`, one for each cluster that
decides by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runai.hub_service.scheduler.cycle import decide
from runai.hub_service.scheduler.index import Changes, Index
from runai.hub_service.scheduler.model import Node, Plan, Policy, Project, Snapshot, Workload


class Decider:
    """One cluster as the core sees it."""

    def __init__(self, nodes: Sequence[Node], projects: Sequence[Project], policy: Policy) -> None:
        """Begin with an empty cluster."""
        self._index = Index(Snapshot(policy=policy, nodes=tuple(nodes), projects=tuple(projects)))

    def decide(self, now: int, changed: Iterable[Workload], gone: Iterable[str]) -> Plan:
        """Decide, after taking workloads that are new or changed and forgetting those gone."""
        self._index.apply(Changes(now=now, workloads=tuple(changed), gone=tuple(gone)))
        return decide(self._index)
