"""Sets of workers to move so that one more worker fits on a node (R10).

Only preemptible jobs may move. Small sets are found node by node, the fewest and cheapest moves
first; the new places of the workers are not chosen here.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.request_shape import RequestShape
from runai.hub_service.scheduler.state.victims import (
    VictimKey,
    pauses_expire_at,
    protected_until,
    running_since,
    victim_key,
)

WorkerGroup = tuple[PlannedWorker, ...]
"""Workers that move together: one, or all parts of an elastic worker (E2)."""


class _BestVictimFirst:
    """Sort key by R4: the project furthest over, then the best victim, is smallest."""

    __slots__ = ("key",)

    def __init__(self, overage: int, key: VictimKey) -> None:
        self.key = overage, key

    def __lt__(self, other: _BestVictimFirst) -> bool:
        return self.key > other.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BestVictimFirst) and self.key == other.key

    __hash__ = None  # type: ignore[assignment]  # only compared


class Vacancy(NamedTuple):
    """A node and the workers that would leave it; the smallest disturbs the fewest."""

    moves: int
    """Workloads that stop to move."""
    unsaved: int
    """Of these, workloads that are not known to save their work."""
    gpu_time: int
    """Device-seconds since their start. If a gang's worker moves, the whole gang counts."""
    order: tuple[_BestVictimFirst, ...]
    """Sort keys of the workers in the order of victims (R4), the best first."""
    node: int
    members: WorkerGroup


class Vacancies:
    """Cached sets of workers that could leave, per node and shape, for one plan."""

    def __init__(self, state: PlanningState, *, for_quota: bool) -> None:
        """Start with an empty cache; `for_quota` is for claims that are within their quota."""
        self._state = state
        self._capacity = state.later
        self._for_quota = for_quota
        self._ranked_by_claim: dict[tuple[RequestShape, str], _RankedVacancies] = {}
        self._movable: dict[PlannedWorkload, bool] = {}
        self._since: dict[PlannedWorkload, int] = {}
        running = (member for on_node in state.on_node.values() for member in on_node)
        self._running = {m.planned.workload.project for m in running if m.phase is Phase.RUNNING}
        """Projects with running workers."""

    def exempt_project(self, planned: PlannedWorkload) -> str:
        """Return the project whose jobs within the quota move for this claim too; "" for none.

        Jobs beyond the quota move for every claim, jobs within it only for a claim within it of
        their own project. Claims with an equal answer may move the same workloads.
        """
        project = planned.workload.project
        has_running_jobs = project in self._running
        is_exempt = not self._for_quota and _is_within_quota(planned) and has_running_jobs
        return project if is_exempt else ""

    def cheapest_first(self, shape: RequestShape, exempt_project: str) -> Generator[Vacancy]:
        """Yield the vacancies for one worker of a shape, smallest disturbance first."""
        ranked = self._ranked_by_claim.get((shape, exempt_project))
        if ranked is None:
            nodes = shape.nodes & self._state.on_node.keys()
            ranked = self._ranked_by_claim[shape, exempt_project] = _RankedVacancies(nodes)
        for node in sorted(ranked.stale_nodes):
            ranked.push(node, self._vacancies_on(node, shape, exempt_project))
        ranked.stale_nodes.clear()
        yield from ranked.in_order()

    def mark_stale(self, nodes: Iterable[int]) -> None:
        """Have the vacancies of changed nodes counted again before their next use."""
        for (shape, _), ranked in self._ranked_by_claim.items():
            ranked.mark_stale(shape.nodes.intersection(nodes))

    def _vacancies_on(self, node: int, shape: RequestShape, exempt_project: str) -> list[Vacancy]:
        """Return a few small sets of workers of a node without which a shape fits there."""
        capacity = self._capacity
        self._state.victims_examined += 1
        groups = self._groups(node, exempt_project)
        spare = 0
        if shape.is_whole:
            # Count first: is there enough room if all of them leave?
            spare = capacity.idle[node] + sum([_devices(group) for group in groups]) - shape.devices
            if spare < 0:
                return []
        ranked = sorted([(self._vacancy(node, group), group) for group in groups])
        if len(ranked) == 1:
            return [ranked[0][0]] if self._suffices(node, shape, groups) else []
        # Orders of staying: the dearest, the largest, or the smallest first.
        dearest = [group for _, group in reversed(ranked)]
        largest = sorted(dearest, key=_quota, reverse=True)
        orders = [dearest, largest, largest[::-1]]
        # The cheapest group of each request last, since it may suffice alone.
        alone: dict[tuple[RequestShape, ...], WorkerGroup] = {}
        for _, group in ranked:
            alone.setdefault(tuple([member.shape for member in group]), group)
        orders += [[*(g for g in dearest if g is not last), last] for last in alone.values()]
        is_whole_only = shape.is_whole and not (shape.cpu or shape.memory)
        if is_whole_only and all(member.shape.is_whole for group in groups for member in group):
            vacating_groups = [_workers_to_move(order, spare) for order in orders]
        elif self._suffices(node, shape, groups):
            vacating_groups = self._try_orders(node, shape, groups, orders)
        else:
            return []
        members = dict.fromkeys([tuple(sorted(group, key=self._rank)) for group in vacating_groups])
        return [self._vacancy(node, vacating) for vacating in members if vacating]

    def _suffices(self, node: int, shape: RequestShape, groups: Sequence[WorkerGroup]) -> bool:
        """Return True if a shape fits once all groups have left, and not before."""
        capacity = self._capacity
        if capacity.devices_on(node, shape) is not None:
            return False
        for group in groups:
            self._book(group, -1)
        fits = capacity.devices_on(node, shape) is not None
        for group in groups:
            self._book(group, 1)
        return fits

    def _try_orders(
        self,
        node: int,
        shape: RequestShape,
        groups: Sequence[WorkerGroup],
        orders: Iterable[Sequence[WorkerGroup]],
    ) -> list[list[PlannedWorker]]:
        """Return, for each order, the workers that must leave if workers stay in that order."""
        capacity = self._capacity
        vacating_groups: list[list[PlannedWorker]] = []
        for group in groups:
            self._book(group, -1)
        for order in orders:
            staying: list[WorkerGroup] = []
            vacating_workers: list[PlannedWorker] = []
            for group in order:
                self._book(group, 1)
                if capacity.devices_on(node, shape) is None:
                    self._book(group, -1)
                    vacating_workers += group
                else:
                    staying.append(group)
            for group in staying:
                self._book(group, -1)
            vacating_groups.append(vacating_workers)
        for group in groups:
            self._book(group, 1)
        return vacating_groups

    def _groups(self, node: int, exempt_project: str) -> list[WorkerGroup]:
        """Return the workers of a node that may move, in groups that move together."""
        groups: dict[object, list[PlannedWorker]] = {}
        for member in self._state.on_node[node]:
            planned = member.planned
            phase = member.phase
            if (phase is Phase.STARTED or phase is Phase.RUNNING) and self._may_move(
                planned, exempt_project, starts=phase is Phase.STARTED
            ):
                groups.setdefault(member if planned.sizes is None else planned, []).append(member)
        return [tuple(group) for group in groups.values()]

    def _may_move(self, planned: PlannedWorkload, exempt_project: str, *, starts: bool) -> bool:
        """Return True if a workload may move for a claim; `starts` if this plan starts it."""
        if starts and planned.sizes is None:
            return not planned.is_fixed and planned.is_known and planned.workload.kind == "job"
        movable = self._movable.get(planned)
        if movable is None:
            movable = self._movable[planned] = self._is_movable(planned)
        if not movable or self._for_quota:
            return movable
        return planned.workload.project == exempt_project or not _is_within_quota(planned)

    def _is_movable(self, planned: PlannedWorkload) -> bool:
        """Return True if a running workload may be stopped for a move, whoever claims its place."""
        state, policy = self._state, self._state.policy
        # Q5: a preemptible session would end, so it cannot move.
        if planned.is_fixed or not planned.is_known or planned.workload.kind != "job":
            return False
        if planned.sizes is not None and any(m.phase is Phase.STARTED for m in planned.members):
            return False  # E2: it is about to be resized where it is
        if protected_until(planned, planned.members, policy, state.time) is not None:
            return False
        if self._for_quota:
            return True
        if policy.moves == "saves" and not planned.workload.saves:
            return False
        return pauses_expire_at(planned, policy.max_moves_per_hour, state.time) <= state.time

    def _vacancy(self, node: int, members: WorkerGroup) -> Vacancy:
        """Return what it costs that workers leave a node."""
        moving_by_workload: dict[PlannedWorkload, list[PlannedWorker]] = {}
        for member in members:
            if member.phase is Phase.RUNNING:
                moving_by_workload.setdefault(member.planned, []).append(member)
        unsaved = gpu_time = 0
        for planned, moving in moving_by_workload.items():
            unsaved += not planned.workload.saves
            running = moving
            if len(planned.members) > len(moving):
                running = [m for m in planned.members if m.phase is Phase.RUNNING]
                if len(running) - len(moving) >= planned.minimum:
                    running = moving  # it goes on with the others
            for member in running:
                started = member.worker.started
                if started is not None:
                    gpu_time += member.shape.devices * max(0, self._state.time - started)
        order = tuple(sorted([self._rank(member) for member in members]))
        return Vacancy(len(moving_by_workload), unsaved, gpu_time, order, node, members)

    def _rank(self, member: PlannedWorker) -> _BestVictimFirst:
        planned = member.planned
        since = self._since.get(planned)
        if since is None:
            since = self._since[planned] = running_since(planned, self._state.time)
        surplus = member.index >= planned.minimum
        key = victim_key(planned.workload, since=since, index=member.index, is_surplus=surplus)
        return _BestVictimFirst(planned.project.overage, key)

    def _book(self, group: WorkerGroup, sign: int) -> None:
        """Reserve the capacity of a group, or release it with sign -1; the state is unaware."""
        for member in group:
            assert member.booking is not None, "running workers have a booking"
            self._capacity.book(member.booking, sign)


class _RankedVacancies:
    """The vacancies for one shape on all nodes, sorted; changed nodes are counted again."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self.stale_nodes = set(nodes)
        """Nodes to count before the next use."""
        self._heap: list[tuple[Vacancy, int]] = []
        self._version: dict[int, int] = {}

    def mark_stale(self, nodes: Iterable[int]) -> None:
        """Invalidate the vacancies of these nodes."""
        for node in nodes:
            self._version[node] = self._version.get(node, 0) + 1
            self.stale_nodes.add(node)

    def push(self, node: int, vacancies: Sequence[Vacancy]) -> None:
        """Add the vacancies of a node."""
        version = self._version.get(node, 0)
        for vacancy in vacancies:
            heappush(self._heap, (vacancy, version))

    def in_order(self) -> Generator[Vacancy]:
        """Yield the valid vacancies, the smallest first. The caller closes the iterator."""
        popped: list[tuple[Vacancy, int]] = []
        try:
            while self._heap:
                vacancy, version = entry = heappop(self._heap)
                if version == self._version.get(vacancy.node, 0):
                    popped.append(entry)
                    yield vacancy
        finally:
            for entry in popped:
                heappush(self._heap, entry)


def _is_within_quota(planned: PlannedWorkload) -> bool:
    return planned.project.allocated <= planned.project.quota


def _workers_to_move(order: Iterable[WorkerGroup], spare: int) -> list[PlannedWorker]:
    """Return the workers that must leave, if groups stay in `order` while spare devices last.

    Counting is enough for whole devices.
    """
    to_move: list[PlannedWorker] = []
    for group in order:
        devices = _devices(group)
        if devices > spare:
            to_move += group
        else:
            spare -= devices
    return to_move


def _devices(group: WorkerGroup) -> int:
    return sum([member.shape.devices for member in group])


def _quota(group: WorkerGroup) -> int:
    return sum([member.shape.quota for member in group])
