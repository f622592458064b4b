"""Cluster state updated incrementally, so that a cycle costs as much as what changed.

`Index` applies added, changed and removed workloads to a `State`, and returns the snapshot on
request. `decide(index)` returns the same plan as `decide(index.snapshot())`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from runai.hub_service.scheduler.model.rests import Rest, at_once
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


class Index:
    """A mutable snapshot with the indexes that a cycle looks up often.

    >>> index = Index(Snapshot(nodes=(Node(name="dgx-1", devices=8),)))
    >>> index.apply(Changes(now=10, projects=(Project(name="vision"),)))
    >>> index.snapshot().projects[0].name
    'vision'
    """

    def __init__(self, snapshot: Snapshot, *, rest: Rest = at_once) -> None:
        """Build the state from a whole snapshot; call `rest` between batches of that work."""
        self._rest = rest
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

    def follow(self, snapshot: Snapshot) -> None:
        """Update to a snapshot, at the cost of the difference and one comparison per workload.

        The comparison is by identity if the caller passes the same object for an unchanged
        workload.
        """
        known, frame = self._workloads, self._frame
        different = []
        for workload in snapshot.workloads:
            before = known.get(workload.name)
            if before is workload:
                continue
            if before == workload:
                known[workload.name] = workload  # the next comparison is by identity
            else:
                different.append(workload)
        gone: Iterable[str] = ()
        if len(known) + len(different) > len(snapshot.workloads):
            there = {workload.name for workload in snapshot.workloads}
            gone = [name for name in known if name not in there]
        self.apply(
            Changes(
                now=snapshot.now,
                workloads=tuple(different),
                gone=tuple(gone),
                nodes=None if snapshot.nodes == frame.nodes else snapshot.nodes,
                projects=None if snapshot.projects == frame.projects else snapshot.projects,
                policy=None if snapshot.policy == frame.policy else snapshot.policy,
            )
        )

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
            self._state = State(snapshot, tree_of(snapshot), self._rest)
        self._state.time = self._frame.now
        return self._state

    def _forget(self) -> None:
        if self._state is not None:
            self._state.let_go()
            self._state = None

    def __del__(self) -> None:
        """Break reference cycles: a forecast of 20,000 workloads holds 40 MiB in them."""
        self._forget()
