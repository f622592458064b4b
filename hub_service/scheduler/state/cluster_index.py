"""Cluster state updated incrementally, so that a cycle costs as much as what changed.

`ClusterIndex` applies added, changed and removed workloads to a `PlanningState`; it returns
the snapshot on request. `decide(index)` returns the same plan as `decide(index.snapshot())`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from runai.hub_service.scheduler.model.snapshot import Node, Policy, Project, Snapshot, Workload
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import tree_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChanges:
    """Difference to the previous snapshot. None means unchanged."""

    now: int | None = None
    workloads: tuple[Workload, ...] = ()
    """New workloads, and replacements of workloads with the same name."""
    removed: tuple[str, ...] = ()
    """Names of removed workloads."""
    nodes: tuple[Node, ...] | None = None
    projects: tuple[Project, ...] | None = None
    policy: Policy | None = None


def changes_between(old_snapshot: Snapshot, new_snapshot: Snapshot) -> SnapshotChanges:
    """Return what turns one snapshot into another, at the cost of one comparison per workload.

    The comparison is by identity if the caller passes the same object for an unchanged workload.
    """
    old_workloads = {workload.name: workload for workload in old_snapshot.workloads}
    different = tuple(
        workload
        for workload in new_snapshot.workloads
        if (old := old_workloads.get(workload.name)) is not workload and old != workload
    )
    new_count = sum(workload.name not in old_workloads for workload in different)
    removed: tuple[str, ...] = ()
    if len(old_workloads) + new_count > len(new_snapshot.workloads):
        present = {workload.name for workload in new_snapshot.workloads}
        removed = tuple(name for name in old_workloads if name not in present)
    return SnapshotChanges(
        now=new_snapshot.now,
        workloads=different,
        removed=removed,
        nodes=None if new_snapshot.nodes == old_snapshot.nodes else new_snapshot.nodes,
        projects=None if new_snapshot.projects == old_snapshot.projects else new_snapshot.projects,
        policy=None if new_snapshot.policy == old_snapshot.policy else new_snapshot.policy,
    )


class ClusterIndex:
    """A mutable snapshot with the indexes that a cycle looks up often.

    >>> index = ClusterIndex(Snapshot(nodes=(Node(name="dgx-1", devices=8),)))
    >>> index.apply(SnapshotChanges(now=10, projects=(Project(name="vision"),)))
    >>> index.snapshot().projects[0].name
    'vision'
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Build the state from a whole snapshot."""
        self._state: PlanningState | None = None
        self._frame = replace(snapshot, workloads=())
        """The snapshot without its workloads."""
        self._workloads = {workload.name: workload for workload in snapshot.workloads}

    def snapshot(self) -> Snapshot:
        """Return the current snapshot."""
        return replace(self._frame, workloads=tuple(self._workloads.values()))

    def apply(self, changes: SnapshotChanges) -> None:
        """Apply changes at the cost of what changed; new nodes, projects or policy rebuild all.

        Raises:
            KeyError: a workload in `removed` is not there.
        """
        frame = {
            name: value
            for name in ("now", "nodes", "projects", "policy")
            if (value := getattr(changes, name)) is not None
        }
        if frame:
            self._frame = replace(self._frame, **frame)
        if any(name != "now" for name in frame):
            self._drop_state()  # other nodes, projects or policy invalidate every index
        for name in changes.removed:
            del self._workloads[name]
        for workload in changes.workloads:
            self._workloads[workload.name] = workload
        if self._state is not None:
            self._apply_to_state(self._state, changes.removed, changes.workloads)

    def _apply_to_state(
        self, state: PlanningState, removed: Iterable[str], added: tuple[Workload, ...]
    ) -> None:
        """Remove workloads from the state, and add new ones or replacements."""
        if any(state.tree.lacks_queue(workload.project) for workload in added):
            self._drop_state()  # a parent project has its first own workload, so the tree changes
            return
        for name in removed:
            state.remove(name)
        for workload in added:
            if workload.name in state.by_name:
                state.remove(workload.name)
        for workload in added:
            state.add(workload)

    def state(self) -> PlanningState:
        """Return the state for one cycle, built if needed. The caller ends with `roll_back(0)`."""
        if self._state is not None and self._state.has_stale_shapes:
            self._drop_state()
        if self._state is None:
            snapshot = self.snapshot()
            self._state = PlanningState(snapshot, tree_of(snapshot))
        self._state.time = self._frame.now
        return self._state

    def _drop_state(self) -> None:
        if self._state is not None:
            self._state.clear()
            self._state = None

    def __del__(self) -> None:
        """Break reference cycles: a forecast of 20,000 workloads holds 40 MiB in them."""
        self._drop_state()
