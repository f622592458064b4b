"""Reasons of waits, stops and moves: a stable code, the rule and a sentence (X).

The numbers reflect the state after the plan, which is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from runai.hub_service.scheduler.explanations.cycle_counts import CycleCounts, nodes_of
from runai.hub_service.scheduler.model.quantity import (
    WHOLE_GPU,
    MilliGpu,
    count_text,
    duration_text,
    gpu_text,
)
from runai.hub_service.scheduler.model.snapshot import Reason, Workload
from runai.hub_service.scheduler.placement.backfill import BackfillHold
from runai.hub_service.scheduler.placement.quota_check import BlockReason, first_cap_exceeded
from runai.hub_service.scheduler.state.equivalence_classes import (
    EquivalenceClass,
    PodSet,
    pending_pod_sets,
)
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.quota_by_type import Charge
from runai.hub_service.scheduler.steps.allocate import AllocateStep
from runai.hub_service.scheduler.steps.reclaim import Eviction, ReclaimStep

T = TypeVar("T")

_MAX_NAMES = 4  # maximum number of names in a sentence; the rest is counted
_ONE_GPU = count_text(WHOLE_GPU)  # the only amount that is singular


class DecisionReasons:
    """Reasons for the decisions of one plan."""

    def __init__(
        self,
        state: PlanningState,
        allocation: AllocateStep,
        reclaim: ReclaimStep,
        counts: CycleCounts,
    ) -> None:
        """Start from the state after every decision."""
        self._state = state
        self._counts = counts
        self._allocation = allocation
        self._reclaim = reclaim
        self.lost = {member.planned for member in reclaim.evictions}
        """Workloads that lose a worker by this plan; the stop has the reason."""
        self.blocked_by_hold = allocation.blocked_by_hold
        """Workloads that would fit but for a hold; each has its own reason."""
        self._reason_by_class: dict[tuple[EquivalenceClass, tuple[str, ...]], Reason] = {}

    # ---- stops and moves

    def stop_reason(self, member: PlannedWorker, eviction: Eviction) -> Reason:
        """Return why a worker is stopped: for which workload, and by which rule."""
        if eviction.claimant is None:
            minimum = member.planned.minimum
            text = f"fewer than the {minimum} workers that it needs ran for too long"
            return Reason(code="stale_gang", rule="R11", text=text)
        return self._preemption_reason(
            eviction, eviction.claimant, member.planned, count_text(_allocated(member))
        )

    def shrink_reason(self, members: Sequence[PlannedWorker], eviction: Eviction) -> Reason:
        """Return the reason of a shrinking; `eviction` is the first worker's.

        It determines the claimant and the rule of the sentence.
        """
        assert eviction.claimant is not None, "a workload shrinks for a claimant"
        what = count_text(sum(map(_allocated, members)))
        return self._preemption_reason(eviction, eviction.claimant, members[0].planned, what)

    def growth_reason(self, members: Sequence[PlannedWorker], node: str) -> Reason:
        """Return the reason of a growth."""
        what = count_text(sum(map(_allocated, members)))
        text = f"{what} more on {node} {'was' if what == _ONE_GPU else 'were'} idle"
        return Reason(code="grown", rule="E2", text=text)

    def _preemption_reason(
        self, eviction: Eviction, claimant: PlannedWorkload, victim: PlannedWorkload, what: str
    ) -> Reason:
        who, it = self._name(claimant, victim), "it" if what == _ONE_GPU else "them"
        if eviction.rule == "E2":
            text = f"{what} beyond its request: {who} waits for {it}"
        elif eviction.rule == "E1":
            text = f"{what} beyond its minimum: {who} waits for {it}"
        elif eviction.rule == "Q6":
            text = f"{who} is within its quota of GPUs, and needs the CPU or memory that this holds"
        elif eviction.rule == "R1":
            text = f"{who} goes before it in {claimant.workload.project} and needs its {what}"
        else:
            entitlement = _entitlement(eviction.victim_project)
            goes = "goes" if what == _ONE_GPU else "go"
            text = (
                f"{eviction.victim_project.name} is over its {entitlement}: {what} {goes} to {who}"
            )
        is_preempted = eviction.rule == "R1"
        return Reason(
            code="shrunk" if eviction.is_surplus else "preempted" if is_preempted else "reclaimed",
            rule=eviction.rule,
            text=text,
            for_=self._id(claimant, victim),
        )

    def move_reason(self, member: PlannedWorker, eviction: Eviction, node: str) -> Reason:
        """Return the reason of a move."""
        assert eviction.claimant is not None, "broken gangs are not moved"
        claimant = self._name(eviction.claimant, member.planned)
        text = f"moved to {node} to make room for {claimant}"
        rule = "R10" if eviction.rule == "R10" else "R5"
        for_ = self._id(eviction.claimant, member.planned)
        return Reason(code="consolidated", rule=rule, text=text, for_=for_)

    # ---- waits

    def wait_reason(self, planned: PlannedWorkload, pod_set: PodSet | None) -> Reason:
        """Return the reason of a wait; `pod_set` is the unplaced one, if known."""
        if pod_set is None or planned in self.lost:
            if not planned.is_known:
                return self._no_member_reason(planned.workload)
            reserved = [m for m in planned.members if m.phase is Phase.RESERVED]
            if reserved:
                return self._reserved_reason(reserved)
            pod_sets = [pod_set for pod_set in pending_pod_sets(planned) if not pod_set.is_surplus]
            if planned in self.lost or not pod_sets:
                text = "its own workers have not stopped yet"
                return Reason(code="stopping", rule="P4", text=text)
            pod_set = pod_sets[0]
        hold = self.blocked_by_hold.get(planned)
        if hold is not None and hold.pod_set.planned is not planned:
            return self._hold_reason(hold, planned)
        # Equal requests have the same reason.
        equivalence = self._state.equivalence_classes.class_of(pod_set)
        types = pod_set.members[0].worker.gpu_types if planned in self._state.undecided else ()
        reason = self._reason_by_class.get((equivalence, types))
        if reason is None:
            reason = self._reason_by_class[equivalence, types] = self._pod_set_reason(
                self._widest_pod_set(pod_set), equivalence
            )
        return reason

    def _widest_pod_set(self, pod_set: PodSet) -> PodSet:
        """Return a pod set with all devices that it may use within its caps, by any charge."""
        planned, project = pod_set.planned, pod_set.planned.project
        if planned not in self._state.undecided:
            return pod_set
        whole = project.parent if project.gpu_type is not None and project.parent else project
        widest_pod_set = pod_set
        for size in dict.fromkeys(charge.device_mib for charge in self._state.charges_for(planned)):
            widest_pod_set = self._charged_by(Charge(whole, size), pod_set)
            if first_cap_exceeded(widest_pod_set) is None:
                break
        return widest_pod_set

    def _charged_by(self, charge: Charge, pod_set: PodSet) -> PodSet:
        """Return a pod set as it would be by another charge. The original is unchanged."""
        members = tuple(
            member.with_shape(self._state.shape_for(charge, member)) for member in pod_set.members
        )
        return PodSet(
            pod_set.planned, members, is_surplus=pod_set.is_surplus, is_growth=pod_set.is_growth
        )

    def _no_member_reason(self, workload: Workload) -> Reason:
        if self._state.tree.has_left(workload):
            text = (
                f"{workload.user} is no member of {workload.project} any more; it starts when an"
                f" admin of {workload.project} adds {workload.user} again"
            )
            return Reason(code="not_a_member", rule="X", text=text)
        text = f"there is no project {workload.project}"
        return Reason(code="unknown_project", rule="X", text=text)

    def _pod_set_reason(self, pod_set: PodSet, equivalence: EquivalenceClass) -> Reason:
        block = first_cap_exceeded(pod_set)
        if block is None:
            block = self._allocation.blocks.get(equivalence)
            if block and block.project and pod_set.planned in self._state.undecided:
                block = None  # it is within the cap on larger devices, which lack room
        if block is not None and block.project is not None:
            return self._cap_reason(block, block.project, pod_set)
        device_loss = self._device_loss(pod_set)
        if any(not member.shape.nodes for member in pod_set.members):
            if device_loss:
                return Reason(code="lost_devices", rule="P5", text=device_loss)
            return self._no_such_node_reason(pod_set)
        reason = self._gang_too_large_reason(pod_set) or self._no_room_reason(
            pod_set, equivalence, block
        )
        return replace(reason, text=f"{reason.text}; {device_loss}") if device_loss else reason

    def _device_loss(self, pod_set: PodSet) -> str:
        """Return which node that a pod set may use offers fewer devices than it has; "": none."""
        nodes = sorted({node for member in pod_set.members for node in member.shape.lossy})
        more = len(nodes) - 1
        rest = f", and {more} more {'offers' if more == 1 else 'offer'} fewer" if more else ""
        return f"{self._state.nodes[nodes[0]].loss}{rest}" if nodes else ""

    def _reserved_reason(self, reserved: list[PlannedWorker]) -> Reason:
        blocking = self._counts.blocking_workers(reserved)
        terminating = dict.fromkeys(
            self._name(member.planned, reserved[0].planned) for member in blocking
        )
        booking = reserved[0].booking
        node = self._state.nodes[booking.node] if booking else None
        who = _names(terminating, str)
        next_step = "it starts in the next cycle"
        if who:
            next_step = f"waiting for {who} to stop{self._grace_left(blocking)}"
        elif booking and node and not set(booking.devices).isdisjoint(node.returning_devices):
            next_step = node.loss or "waiting for its GPUs to work again"
        text = f"its place on {node.name if node else ''} is reserved; {next_step}"
        return Reason(code="stopping", rule="R7", text=text)

    def _grace_left(self, stopping: Sequence[PlannedWorker]) -> str:
        """Return the remaining grace period of stopping workers, if the snapshot has it."""
        ends = [member.worker.gone_by for member in stopping]
        known = [end for end in ends if end is not None]
        if len(known) < len(ends):
            return ""
        seconds = max(known) - self._state.time
        return f", {seconds} s at most" if seconds > 0 else ""

    def _cap_reason(self, block: BlockReason, project: ProjectNode, pod_set: PodSet) -> Reason:
        if block.code == "over_build_quota":
            who = _listing(self._holders_of(project, pod_set.planned))
            text = (
                f"the build quota of {project.name} is {count_text(project.build_quota)},"
                f" and its notebooks hold {gpu_text(project.build)}{who}"
            )
        elif block.code == "over_share":
            text = (
                f"its guaranteed workers stay within the quota: {project.name} holds"
                f" {gpu_text(project.allocated)} of {count_text(project.quota)}; this asks for"
                f" {gpu_text(pod_set.demand)}"
            )
        else:
            text = (
                f"{project.name} may hold at most {count_text(project.limit)} and holds"
                f" {gpu_text(project.allocated)}; this asks for {gpu_text(pod_set.demand)}"
            )
        return Reason(code=block.code, rule=block.rule, text=text)

    def _no_such_node_reason(self, pod_set: PodSet) -> Reason:
        shape = next(member.shape for member in pod_set.members if not member.shape.nodes)
        largest = max((node.usable_devices for node in self._state.nodes), default=0)
        if shape.devices > largest:
            text = (
                f"no node has {count_text(shape.devices * 1000)}; the largest has {largest}:"
                " ask for more workers instead"
            )
        elif shape.mib > max((n.device_memory_mib for n in self._state.nodes), default=0):
            text = f"no device has {shape.mib} MiB of memory"
        elif missing_types := self._missing_types(pod_set):
            available = sorted({node.gpu_type for node in self._state.nodes if node.gpu_type})
            available_text = (
                f"there is {' and '.join(available)}" if available else "no node says which it has"
            )
            text = f"no node has a GPU of type {missing_types}; {available_text}"
        else:
            text = "no node that it may use has what it asks for"
        return Reason(code="no_such_node", rule="P5", text=text)

    def _missing_types(self, pod_set: PodSet) -> str:
        """Return the requested GPU types, if no node has one of them."""
        available = {node.gpu_type for node in self._state.nodes}
        requested = (member.worker.gpu_types for member in pod_set.members)
        return next((" or ".join(t) for t in requested if t and available.isdisjoint(t)), "")

    def _gang_too_large_reason(self, pod_set: PodSet) -> Reason | None:
        """Return a reason if a gang does not fit into the empty cluster."""
        total = len(pod_set.members)
        fitting = self._counts.fitting(pod_set, ever=True) if total > 1 else total
        if fitting >= total:
            return None
        text = f"only {fitting} of its {total} workers fit on all nodes that it may use"
        return Reason(code="no_such_node", rule="P4", text=text)

    def _no_room_reason(
        self, pod_set: PodSet, equivalence: EquivalenceClass, block: BlockReason | None
    ) -> Reason:
        if equivalence in self._reclaim.exhausted:
            limit = self._state.policy.max_evictions
            text = f"its place would stop more workers than the {limit} that one plan may stop"
            return Reason(code="protected", rule="R8", text=text)
        nodes = nodes_of(pod_set)
        free = self._counts.free_on(nodes)
        if block is not None and block.code == "held_for":
            return self._never_lent_reason(pod_set)
        first = (
            self._queue_ahead_reason(pod_set, equivalence, nodes, free)
            if free < pod_set.demand
            else None
        )
        return (
            first
            or self._fragmented_reason(pod_set, nodes, free)
            or self._full_reason(pod_set, equivalence, nodes, free)
        )

    def _hold_reason(self, hold: BackfillHold, planned: PlannedWorkload) -> Reason:
        first = hold.pod_set.planned
        text = (
            f"the free GPUs are kept for {self._name(first, planned)}, which waits longer and is"
            f" expected to start in {duration_text(max(0, hold.start - self._state.time))}"
        )
        return Reason(code="held_for", rule="O4", text=text, for_=self._id(first, planned))

    def _never_lent_reason(self, pod_set: PodSet) -> Reason:
        owners = [a for a in self._state.tree.holders if a not in pod_set.planned.project.path]
        owner_names = _names(owners, lambda owner: f"{owner.name} ({gpu_text(owner.never_lent)})")
        return Reason(
            code="held_for",
            rule="Q2",
            text=f"the free GPUs are kept for {owner_names}",
            for_=owners[0].name if owners else None,
        )

    def _queue_ahead_reason(
        self, pod_set: PodSet, equivalence: EquivalenceClass, nodes: frozenset[int], free: int
    ) -> Reason | None:
        reserved = self._counts.reserved_on(nodes, pod_set.planned)
        if reserved and free + sum(reserved.values()) >= pod_set.demand:
            text = f"the free GPUs are reserved for {self._names_of(reserved, pod_set.planned)}"
            first = self._id(next(iter(reserved)), pod_set.planned)
            return Reason(code="held_for", rule="R7", text=text, for_=first)
        started = self._counts.started_on(nodes, pod_set.planned)
        if not started or free + sum(started.values()) < pod_set.demand:
            return None
        if self._project_over_share(pod_set, equivalence) and all(
            i.project is not pod_set.planned.project for i in started
        ):
            # The reason is the project's allocation, not the workload that started first: it stays
            # the same in each cycle, so that waiting users see no new reason at every start.
            return None
        text = (
            f"{self._names_of(started, pod_set.planned)} came first in the queue and took"
            " the free GPUs"
        )
        first = self._id(next(iter(started)), pod_set.planned)
        return Reason(code="behind", rule="O1", text=text, for_=first)

    def _full_reason(
        self, pod_set: PodSet, equivalence: EquivalenceClass, nodes: frozenset[int], free: int
    ) -> Reason:
        planned = pod_set.planned
        until = self._reclaim.protected.get(equivalence)
        if until is not None:
            left = duration_text(until - self._state.time)
            text = (
                f"the jobs that may be paused for it are in their minimum run time, for {left} more"
            )
            return Reason(code="protected", rule="R8", text=text)
        if not pod_set.demand:
            default = "no node has the CPU and memory that it asks for"
            text = self._cpu_memory_text(pod_set, nodes) or default
            return Reason(code="no_room", rule="P5", text=text)
        total = self._counts.devices_on(nodes) * WHOLE_GPU
        allocated = total - free
        used = f"{gpu_text(allocated)} of {self._amount_on(nodes, total)} {_be(allocated)} in use"
        users = self._counts.projects_on(nodes)
        has_rivals = any(name != planned.workload.project for name in users)
        over_project = self._project_over_share(pod_set, equivalence)
        if over_project is not None and has_rivals:
            text = (
                f"{over_project.name} holds {gpu_text(over_project.allocated)} of its fair share of"
                f" {count_text(over_project.fair_share)}; this asks for {gpu_text(pod_set.demand)},"
                f" and {used}"
            )
            return Reason(code="over_share", rule="R2", text=text)
        if equivalence in self._reclaim.not_proven:
            text = f"{used}; the search for jobs to pause for it was given up, and is tried again"
            return Reason(code="not_proven", rule="R5", text=text)
        text = self._device_memory_text(pod_set) or f"{used}{_listing(users)}"
        return Reason(code="no_room", rule="P1", text=text)

    def _amount_on(self, nodes: frozenset[int], total: int) -> str:
        """Return an amount of these nodes' GPUs, with their type if others have another one."""
        types = {self._state.nodes[node].gpu_type for node in nodes}
        if len(types) > 1 or types >= {node.gpu_type for node in self._state.nodes}:
            return count_text(total)
        return f"{count_text(total)} of type {types.pop()}" if any(types) else count_text(total)

    def _project_over_share(
        self, pod_set: PodSet, equivalence: EquivalenceClass
    ) -> ProjectNode | None:
        """Return the project whose fair share is too small, if that prevents a reclaim (R2)."""
        if equivalence not in self._reclaim.over_share:
            return None
        path, demand = pod_set.planned.project.path, pod_set.demand
        return next((node for node in path if node.allocated + demand > node.fair_share), None)

    def _fragmented_reason(
        self, pod_set: PodSet, nodes: frozenset[int], free: int
    ) -> Reason | None:
        total = len(pod_set.members)
        fitting = self._counts.fitting(pod_set)
        if 0 < fitting < total:
            text = f"{fitting} of its {total} workers would fit now; it needs all of them at once"
            return Reason(code="gang_incomplete", rule="P4", text=text)
        if free < pod_set.demand or not pod_set.demand:
            return None
        needs_cpu_memory = any(
            member.shape.cpu or member.shape.memory for member in pod_set.members
        )
        free_text = f"{count_text(free)} {_be(free)} free"
        text = self._device_memory_text(pod_set)
        if not text:
            text = f"{free_text}, but {self._where_free(pod_set, nodes)}" + (
                " with the CPU and memory that it asks for" if needs_cpu_memory else ""
            )
        if needs_cpu_memory and (lacks := self._cpu_memory_text(pod_set, nodes)):
            text = f"{lacks}; {free_text}"
        return Reason(code="fragmented", rule="P2", text=text)

    def _where_free(self, pod_set: PodSet, nodes: frozenset[int]) -> str:
        """Return how the free GPUs of these nodes lie, although they add up to the request."""
        max_devices = max(member.shape.devices for member in pod_set.members)
        if any(member.worker.gpus < WHOLE_GPU for member in pod_set.members):
            return "not on one device"
        idle = sum(self._state.now.idle[node] for node in nodes)
        return "not on one node" if idle >= max_devices else "only in parts"

    def _device_memory_text(self, pod_set: PodSet) -> str:
        """Return a worker's lack of device memory on all its nodes, with the holders; "": none.

        Of a fraction only where memory alone lacks. The numbers are of the node where most is free.
        """
        now, shape = self._state.now, pod_set.members[0].shape
        if shape.is_whole or not shape.devices:
            return ""

        def spare(node: int) -> int:
            return _nth_largest(now.mib[node], shape.devices) - shape.mib_on(now.device_mib[node])

        nodes = sorted(shape.nodes)
        full = [n for n in nodes if _nth_largest(now.milli[n], shape.devices) >= shape.milli]
        best = max(full, key=spare, default=None)
        if best is None or spare(best) >= 0:
            return ""
        allocated: dict[PlannedWorkload, int] = {}
        for member in self._state.on_node.get(best, ()):
            if (booking := member.booking) is not None:
                allocated[member.planned] = allocated.get(member.planned, 0) + booking.mib * len(
                    booking.devices
                )
        holders = sorted(
            (i for i in allocated if allocated[i]),
            key=lambda planned: (-allocated[planned], planned.age),
        )
        where = "one GPU" if shape.devices == 1 else f"each of {shape.devices} GPUs of one node"
        size = now.device_mib[best]
        free = max(0, _nth_largest(now.mib[best], shape.devices))
        text = (
            f"needs {shape.mib_on(size)} MiB on {where}; {self._state.nodes[best].name} has at most"
            f" {free} of {size} MiB free"
        )
        return f"{text}, held by {self._names_of(holders, pod_set.planned)}" if holders else text

    def _cpu_memory_text(self, pod_set: PodSet, nodes: frozenset[int]) -> str:
        """Return a worker's lack of CPU or memory on every node, with the holders; "": none.

        The numbers are of the node where most is free.
        """
        now, state = self._state.now, self._state
        shape = next((m.shape for m in pod_set.members if m.shape.cpu or m.shape.memory), None)
        if shape is None or not nodes:
            return ""
        for of_cpu, requested, free in (
            (True, shape.cpu, now.cpu),
            (False, shape.memory, now.memory),
        ):
            best = max(sorted(nodes), key=free.__getitem__)
            if requested <= free[best]:
                continue
            node = state.nodes[best]
            total = (node.cpu_milli if of_cpu else node.memory_mib) or 0
            allocated: dict[PlannedWorkload, int] = {}
            for member in state.on_node.get(best, ()):
                if (booking := member.booking) is not None:
                    amount = booking.cpu if of_cpu else booking.memory
                    allocated[member.planned] = allocated.get(member.planned, 0) + amount
            holders = sorted(
                (i for i in allocated if allocated[i]),
                key=lambda planned: (-allocated[planned], planned.age),
            )
            amount_text = _cpus if of_cpu else _memory
            text = (
                f"needs {amount_text(requested)} on one node; {node.name} has"
                f" {_part(max(0, free[best]), of_cpu=of_cpu)} of {amount_text(total)} free"
            )
            return (
                f"{text}, held by {self._names_of(holders, pod_set.planned)}" if holders else text
            )
        return ""

    # ---- names

    def _may_name(self, planned: PlannedWorkload, reader: PlannedWorkload) -> bool:
        same = planned.workload.project == reader.workload.project
        return same or self._state.policy.name_others

    def _name(self, planned: PlannedWorkload, reader: PlannedWorkload) -> str:
        """Return a workload's name for readers of another one, or only its kind and project."""
        if self._may_name(planned, reader):
            return _label(planned)
        return f"a {planned.workload.kind} of {planned.workload.project}"

    def _id(self, planned: PlannedWorkload, reader: PlannedWorkload) -> str | None:
        return planned.name if self._may_name(planned, reader) else None

    def _names_of(
        self, planned_workloads: Iterable[PlannedWorkload], reader: PlannedWorkload
    ) -> str:
        return _names(
            dict.fromkeys(self._name(planned, reader) for planned in planned_workloads), str
        )

    def _holders_of(self, project_node: ProjectNode, reader: PlannedWorkload) -> dict[str, int]:
        """Return allocations of a build quota by user. Empty if the reader may not see them."""
        project = (
            project_node.parent if project_node.gpu_type and project_node.parent else project_node
        )
        if self._state.policy.name_others or project.name == reader.workload.project:
            return self._counts.session_holders(project_node)
        return {}


def _label(planned: PlannedWorkload) -> str:
    if planned.workload.kind == "session" and planned.workload.user:
        return f"the session of {planned.workload.user}"
    return planned.name


def _allocated(member: PlannedWorker) -> int:
    return member.origin.quota if member.origin else member.shape.quota


def _entitlement(project: ProjectNode) -> str:
    if project.limit < max(project.fair_share, project.quota):
        return f"limit of {count_text(project.limit)}"
    if project.fair_share > project.quota:
        return f"fair share of {count_text(project.fair_share)}"
    return f"quota of {count_text(project.quota)}"


def _be(milli: int) -> str:
    return "is" if milli <= WHOLE_GPU else "are"


def _nth_largest(amounts: Sequence[int], count: int) -> int:
    return sorted(amounts, reverse=True)[count - 1]


def _cpus(milli: int) -> str:
    return count_text(milli, "CPU")


def _memory(mib: int) -> str:
    return f"{_part(mib, of_cpu=False)} of memory"


def _part(amount: int, *, of_cpu: bool) -> str:
    if of_cpu:
        return gpu_text(MilliGpu(amount))
    gib, rest = divmod(amount, 1024)
    return f"{amount} MiB" if rest else f"{gib} GiB"


def _names(items: Collection[T], name: Callable[[T], str]) -> str:
    names = [name(item) for item in islice(items, _MAX_NAMES)]
    if len(items) > _MAX_NAMES:
        return f"{', '.join(names)} and {len(items) - _MAX_NAMES} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _listing(amounts: dict[str, int]) -> str:
    if not amounts:
        return ""
    ranked = sorted(amounts.items(), key=lambda entry: (-entry[1], entry[0]))
    names = [f"{name} {gpu_text(milli)}" for name, milli in ranked[:_MAX_NAMES]]
    rest = len(ranked) - len(names)
    return ": " + ", ".join(names) + (f" and {rest} more" if rest else "")
