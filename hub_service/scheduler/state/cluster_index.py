"""Cluster state updated incrementally, so that a cycle costs as much as what changed.

`Index` applies added, changed and removed workloads to a `State`, and returns the snapshot on
request. `decide(index)` returns the same plan as `decide(index.snapshot())`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from runai.hub_service.scheduler.model.snapshot import Node, Policy, Project, Snapshot, Workload
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import tree_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Difference to the previous snapshot. None means unchanged."""

    now: int | None = None
    workloads: tuple[Workload, ...] = ()
    """New workloads, and replacements of workloads with the same name."""
    gone: tuple[str, ...] = ()
    """Names of removed workloads."""
    nodes: tuple[Node, ...] | None = None
    projects: tuple[Project, ...] | None = None
    policy: Policy | None = None


def changes_between(before: Snapshot, after: Snapshot) -> Changes:
    """Return what turns one snapshot into another, at the cost of one comparison per workload.

    The comparison is by identity if the caller passes the same object for an unchanged workload.
    """
    known = {workload.name: workload for workload in before.workloads}
    different = tuple(
        workload
        for workload in after.workloads
        if (was := known.get(workload.name)) is not workload and was != workload
    )
    new = sum(workload.name not in known for workload in different)
    gone: tuple[str, ...] = ()
    if len(known) + new > len(after.workloads):
        there = {workload.name for workload in after.workloads}
        gone = tuple(name for name in known if name not in there)
    return Changes(
        now=after.now,
        workloads=different,
        gone=gone,
        nodes=None if after.nodes == before.nodes else after.nodes,
        projects=None if after.projects == before.projects else after.projects,
        policy=None if after.policy == before.policy else after.policy,
    )


class Index:
    """A mutable snapshot with the indexes that a cycle looks up often.

    >>> index = Index(Snapshot(nodes=(Node(name="dgx-1", devices=8),)))
    >>> index.apply(Changes(now=10, projects=(Project(name="vision"),)))
    >>> index.snapshot().projects[0].name
    'vision'
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Build the state from a whole snapshot."""
        self._state: State | None = None
        self._frame = replace(snapshot, workloads=())
        self._workloads = {workload.name: workload for workload in snapshot.workloads}

    def snapshot(self) -> Snapshot:
        """Return the current snapshot."""
        return replace(self._frame, workloads=tuple(self._workloads.values()))

    def apply(self, changes: Changes) -> None:
        """Apply changes at the cost of what changed; new nodes, projects or policy rebuild all.

        Raises:
            KeyError: a workload in `gone` is not there.
        """
        frame = {
            name: value
            for name in ("now", "nodes", "projects", "policy")
            if (value := getattr(changes, name)) is not None
        }
        if frame:
            self._frame = replace(self._frame, **frame)
        if any(name != "now" for name in frame):
            self._forget()  # other nodes, projects or policy invalidate every index
        for name in changes.gone:
            del self._workloads[name]
        for workload in changes.workloads:
            self._workloads[workload.name] = workload
        if self._state is not None:
            self._carry_in(self._state, changes.gone, changes.workloads)

    def _carry_in(self, state: State, gone: Iterable[str], come: tuple[Workload, ...]) -> None:
        if any(state.tree.lacks_queue(workload.project) for workload in come):
            self._forget()  # a parent project has its first own workload, so the tree changes
            return
        for name in gone:
            state.remove(name)
        for workload in come:
            if workload.name in state.by_name:
                state.remove(workload.name)
        for workload in come:
            state.add(workload)

    def state(self) -> State:
        """Return the state for one cycle. The caller ends the cycle with `roll_back(0)`."""
        if self._state is not None and self._state.has_stale_kinds:
            self._forget()
        if self._state is None:
            snapshot = self.snapshot()
            self._state = State(snapshot, tree_of(snapshot))
        self._state.time = self._frame.now
        return self._state

    def _forget(self) -> None:
        if self._state is not None:
            self._state.clear()
            self._state = None

    def __del__(self) -> None:
        """Break reference cycles: a forecast of 20,000 workloads holds 40 MiB in them."""
        self._forget()
