"""The cluster kept in step with changes, so that a cycle costs what changed and not what there is.

Knows how workloads that come, change and go are carried into a `State`, and how to give the
snapshot back. Decides nothing: `decide(index)` gives the plan of `decide(index.snapshot())`.
Kept by the controller and the simulator.
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
    """What is different from the picture before. None is "as it was"."""

    now: int | None = None
    workloads: tuple[Workload, ...] = ()
    """New ones, and those that take the place of one with their name."""
    gone: tuple[str, ...] = ()
    """Names of workloads that are not there any more."""
    nodes: tuple[Node, ...] | None = None
    projects: tuple[Project, ...] | None = None
    policy: Policy | None = None


class Index:
    """A snapshot that can change, with everything that a cycle looks up often.

    >>> index = Index(Snapshot(nodes=(Node(name="dgx-1", devices=8),)))
    >>> index.apply(Changes(now=10, projects=(Project(name="vision"),)))
    >>> index.snapshot().projects[0].name
    'vision'
    """

    def __init__(self, snapshot: Snapshot, *, rest: Rest = at_once) -> None:
        """Read a snapshot whole, once; `rest` is told between pieces of that."""
        self._rest = rest
        self._state: State | None = None
        self._frame = replace(snapshot, workloads=())
        self._workloads = {workload.name: workload for workload in snapshot.workloads}

    def snapshot(self) -> Snapshot:
        """Give the picture as it is now."""
        return replace(self._frame, workloads=tuple(self._workloads.values()))

    def apply(self, changes: Changes) -> None:
        """Carry changes in: costs what changed, but for nodes, projects and policy.

        Raises:
            KeyError: a workload that is said to be gone was not there.
        """
        frame = {
            name: value
            for name in ("now", "nodes", "projects", "policy")
            if (value := getattr(changes, name)) is not None
        }
        if frame:
            self._frame = replace(self._frame, **frame)
        if any(name != "now" for name in frame):
            self._forget()  # another cluster: everything is looked up anew
        for name in changes.gone:
            del self._workloads[name]
        for workload in changes.workloads:
            self._workloads[workload.name] = workload
        if self._state is not None:
            self._carry_in(self._state, changes.gone, changes.workloads)

    def follow(self, snapshot: Snapshot) -> None:
        """Become a snapshot: costs what differs, and a look at each workload that does not.

        Who draws snapshots and gives the same object again for a workload that has not changed
        makes that look the shortest one.
        """
        known, frame = self._workloads, self._frame
        different = []
        for workload in snapshot.workloads:
            before = known.get(workload.name)
            if before is workload:
                continue
            if before == workload:
                known[workload.name] = workload  # next time a glance will do
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
            self._forget()  # a project with children has its first workload of its own
            return
        for name in gone:
            state.remove(name)
        for workload in come:
            if workload.name in state.by_name:
                state.remove(workload.name)
        for workload in come:
            state.add(workload)

    def state(self) -> State:
        """Give the state for one cycle, which ends with `roll_back(0)`."""
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
        """Leave no circles behind: a forecast of 20,000 workloads is 40 MiB of them."""
        self._forget()
