"""Reasons of waits, stops and moves: a stable code, the rule and a sentence (X).

The numbers reflect the state after the plan, which is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from runai.hub_service.scheduler.explanations.cycle_counts import Census, nodes_of
from runai.hub_service.scheduler.model.quantity import (
    WHOLE_GPU,
    MilliGpu,
    count_text,
    duration_text,
    gpu_text,
)
from runai.hub_service.scheduler.model.snapshot import Reason, Workload
from runai.hub_service.scheduler.placement.backfill import Hold
from runai.hub_service.scheduler.placement.quota_check import Block, cap_in_the_way
from runai.hub_service.scheduler.state.equivalence import EquivalenceClass, PodSet, pending_units
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.quota_by_type import Charge
from runai.hub_service.scheduler.steps.allocate import AllocateStep
from runai.hub_service.scheduler.steps.reclaim import Eviction, Reclaim

T = TypeVar("T")

_SHOWN = 4  # maximum number of names in a sentence; the rest is counted
_ONE = count_text(WHOLE_GPU)  # the only amount that is singular


class Reasons:
    """Reasons for the decisions of one plan."""

    def __init__(
        self, state: State, allocation: AllocateStep, reclaim: Reclaim, census: Census
    ) -> None:
        """Start from the state after every decision."""
        self._state = state
        self._census = census
        self._allocation = allocation
        self._reclaim = reclaim
        self.lost = {member.item for member in reclaim.losses}
        """Workloads that lose a worker by this plan; the stop has the reason."""
        self.held_up = allocation.held_up
        """Workloads that would fit but for a hold; each has its own reason."""
        self._of_lane: dict[tuple[EquivalenceClass, tuple[str, ...]], Reason] = {}

    # ---- stops and moves

    def of_loss(self, member: PlannedWorker, loss: Eviction) -> Reason:
        """Return why a worker is stopped: for which workload, and by which rule."""
        if loss.claimant is None:
            text = f"fewer than the {member.item.minimum} workers that it needs ran for too long"
            return Reason(code="stale_gang", rule="R11", text=text)
        return self._of_stop(loss, loss.claimant, member.item, count_text(_allocated(member)))

    def of_shrinking(self, members: Sequence[PlannedWorker], loss: Eviction) -> Reason:
        """Return the reason of a shrinking; `loss` is the first worker's.

        It determines the claimant and the rule of the sentence.
        """
        assert loss.claimant is not None, "a workload shrinks for a claimant"
        what = count_text(sum(map(_allocated, members)))
        return self._of_stop(loss, loss.claimant, members[0].item, what)

    def of_growing(self, members: Sequence[PlannedWorker], node: str) -> Reason:
        """Return the reason of a growth."""
        what = count_text(sum(map(_allocated, members)))
        text = f"{what} more on {node} {'was' if what == _ONE else 'were'} idle"
        return Reason(code="grown", rule="E2", text=text)

    def _of_stop(
        self, loss: Eviction, claimant: PlannedWorkload, loser: PlannedWorkload, what: str
    ) -> Reason:
        who, it = self._name(claimant, loser), "it" if what == _ONE else "them"
        if loss.rule == "E2":
            text = f"{what} beyond its request: {who} waits for {it}"
        elif loss.rule == "E1":
            text = f"{what} beyond its minimum: {who} waits for {it}"
        elif loss.rule == "Q6":
            text = f"{who} is within its quota of GPUs, and needs the CPU or memory that this holds"
        elif loss.rule == "R1":
            text = f"{who} goes before it in {claimant.workload.project} and needs its {what}"
        else:
            over = _entitlement(loss.giver)
            goes = "goes" if what == _ONE else "go"
            text = f"{loss.giver.name} is over its {over}: {what} {goes} to {who}"
        return Reason(
            code="shrunk" if loss.is_surplus else "preempted" if loss.rule == "R1" else "reclaimed",
            rule=loss.rule,
            text=text,
            for_=self._id(claimant, loser),
        )

    def of_move(self, member: PlannedWorker, loss: Eviction, node: str) -> Reason:
        """Return the reason of a move."""
        assert loss.claimant is not None, "broken gangs are not moved"
        text = f"moved to {node} to make room for {self._name(loss.claimant, member.item)}"
        rule = "R10" if loss.rule == "R10" else "R5"
        for_ = self._id(loss.claimant, member.item)
        return Reason(code="consolidated", rule=rule, text=text, for_=for_)

    # ---- waits

    def of_wait(self, item: PlannedWorkload, unit: PodSet | None) -> Reason:
        """Return the reason of a wait; `unit` is the unplaced unit, if known."""
        if unit is None or item in self.lost:
            if not item.is_known:
                return self._of_no_member(item.workload)
            reserved = [m for m in item.members if m.standing is Phase.RESERVED]
            if reserved:
                return self._of_reserved(reserved)
            units = [unit for unit in pending_units(item) if not unit.is_surplus]
            if item in self.lost or not units:
                text = "its own workers have not stopped yet"
                return Reason(code="stopping", rule="P4", text=text)
            unit = units[0]
        hold = self.held_up.get(item)
        if hold is not None and hold.unit.item is not item:
            return self._of_hold(hold, item)
        # Equal requests have the same reason.
        lane = self._state.lanes.lane_of(unit)
        types = unit.members[0].worker.gpu_types if item in self._state.undecided else ()
        reason = self._of_lane.get((lane, types))
        if reason is None:
            with self._on_all_charges(unit) as widest:
                reason = self._of_lane[lane, types] = self._of_unit(widest, lane)
        return reason

    @contextmanager
    def _on_all_charges(self, unit: PodSet) -> Generator[PodSet]:
        """Yield a unit with all devices that it may use within its caps, in each way it counts."""
        state, members = self._state, unit.members
        if unit.item not in state.undecided:
            yield unit
            return
        account = unit.item.account
        whole = account.parent if account.gpu_type is not None and account.parent else account
        kinds = [member.kind for member in members]
        widest = unit
        for size in dict.fromkeys(charge.device_mib for charge in state.charges_for(unit.item)):
            for member in members:
                member.kind = state.kind_on(Charge(whole, size), member)
            widest = PodSet(
                unit.item, members, is_surplus=unit.is_surplus, is_growth=unit.is_growth
            )
            if cap_in_the_way(widest) is None:
                break
        yield widest
        for member, kind in zip(members, kinds, strict=True):
            member.kind = kind

    def _of_no_member(self, workload: Workload) -> Reason:
        if self._state.tree.has_left(workload):
            text = (
                f"{workload.user} is no member of {workload.project} any more; it starts when an"
                f" admin of {workload.project} adds {workload.user} again"
            )
            return Reason(code="not_a_member", rule="X", text=text)
        text = f"there is no project {workload.project}"
        return Reason(code="unknown_project", rule="X", text=text)

    def _of_unit(self, unit: PodSet, lane: EquivalenceClass) -> Reason:
        block = cap_in_the_way(unit)
        if block is None:
            block = self._allocation.blocks.get(lane)
            if block and block.account and unit.item in self._state.undecided:
                block = None  # it is within the cap on larger devices, which lack room
        if block is not None and block.account is not None:
            return self._of_cap(block, block.account, unit)
        loss = self._loss(unit)
        if any(not member.kind.nodes for member in unit.members):
            if loss:
                return Reason(code="lost_devices", rule="P5", text=loss)
            return self._of_no_such_node(unit)
        reason = self._of_too_many(unit) or self._of_no_room(unit, lane, block)
        return replace(reason, text=f"{reason.text}; {loss}") if loss else reason

    def _loss(self, unit: PodSet) -> str:
        """Return which node that a unit may use offers fewer devices than it has; "": none."""
        nodes = sorted({node for member in unit.members for node in member.kind.lossy})
        more = len(nodes) - 1
        others = f", and {more} more {'offers' if more == 1 else 'offer'} fewer" if more else ""
        return f"{self._state.nodes[nodes[0]].loss}{others}" if nodes else ""

    def _of_reserved(self, reserved: list[PlannedWorker]) -> Reason:
        going = self._census.waited_for(reserved)
        leaving = dict.fromkeys(self._name(member.item, reserved[0].item) for member in going)
        booking = reserved[0].booking
        node = self._state.nodes[booking.node] if booking else None
        who = _names(leaving, str)
        next_step = "it starts in the next cycle"
        if who:
            next_step = f"waiting for {who} to stop{self._grace_left(going)}"
        elif booking and node and not set(booking.devices).isdisjoint(node.returning_devices):
            next_step = node.loss or "waiting for its GPUs to work again"
        text = f"its place on {node.name if node else ''} is reserved; {next_step}"
        return Reason(code="stopping", rule="R7", text=text)

    def _grace_left(self, going: Sequence[PlannedWorker]) -> str:
        """Return the remaining grace period of stopping workers, if the snapshot has it."""
        ends = [member.worker.gone_by for member in going]
        known = [end for end in ends if end is not None]
        if len(known) < len(ends):
            return ""
        seconds = max(known) - self._state.time
        return f", {seconds} s at most" if seconds > 0 else ""

    def _of_cap(self, block: Block, account: ProjectNode, unit: PodSet) -> Reason:
        if block.code == "over_build_quota":
            who = _listing(self._holders_of(account, unit.item))
            text = (
                f"the build quota of {account.name} is {count_text(account.build_quota)},"
                f" and its notebooks hold {gpu_text(account.build)}{who}"
            )
        elif block.code == "over_share":
            text = (
                f"its guaranteed workers stay within the quota: {account.name} holds"
                f" {gpu_text(account.allocated)} of {count_text(account.quota)}; this asks for"
                f" {gpu_text(unit.demand)}"
            )
        else:
            text = (
                f"{account.name} may hold at most {count_text(account.limit)} and holds"
                f" {gpu_text(account.allocated)}; this asks for {gpu_text(unit.demand)}"
            )
        return Reason(code=block.code, rule=block.rule, text=text)

    def _of_no_such_node(self, unit: PodSet) -> Reason:
        kind = next(member.kind for member in unit.members if not member.kind.nodes)
        largest = max((node.usable_devices for node in self._state.nodes), default=0)
        if kind.devices > largest:
            text = (
                f"no node has {count_text(kind.devices * 1000)}; the largest has {largest}:"
                " ask for more workers instead"
            )
        elif kind.mib > max((n.device_memory_mib for n in self._state.nodes), default=0):
            text = f"no device has {kind.mib} MiB of memory"
        elif asked := self._missing_types(unit):
            there = sorted({node.gpu_type for node in self._state.nodes if node.gpu_type})
            others = f"there is {' and '.join(there)}" if there else "no node says which it has"
            text = f"no node has a GPU of type {asked}; {others}"
        else:
            text = "no node that it may use has what it asks for"
        return Reason(code="no_such_node", rule="P5", text=text)

    def _missing_types(self, unit: PodSet) -> str:
        """Return the requested GPU types, if no node has one of them."""
        there = {node.gpu_type for node in self._state.nodes}
        asked = (member.worker.gpu_types for member in unit.members)
        return next((" or ".join(t) for t in asked if t and there.isdisjoint(t)), "")

    def _of_too_many(self, unit: PodSet) -> Reason | None:
        """Return a reason if a gang does not fit into the empty cluster."""
        total = len(unit.members)
        fitting = self._census.fitting(unit, ever=True) if total > 1 else total
        if fitting >= total:
            return None
        text = f"only {fitting} of its {total} workers fit on all nodes that it may use"
        return Reason(code="no_such_node", rule="P4", text=text)

    def _of_no_room(self, unit: PodSet, lane: EquivalenceClass, block: Block | None) -> Reason:
        if lane in self._reclaim.exhausted:
            most = self._state.policy.max_evictions
            text = f"its place would stop more workers than the {most} that one plan may stop"
            return Reason(code="protected", rule="R8", text=text)
        nodes = nodes_of(unit)
        free = self._census.free_on(nodes)
        if block is not None and block.code == "held_for":
            return self._of_never_lent(unit)
        first = self._of_others_first(unit, lane, nodes, free) if free < unit.demand else None
        return (
            first or self._of_scattered(unit, nodes, free) or self._of_full(unit, lane, nodes, free)
        )

    def _of_hold(self, hold: Hold, item: PlannedWorkload) -> Reason:
        first = hold.unit.item
        text = (
            f"the free GPUs are kept for {self._name(first, item)}, which waits longer and is"
            f" expected to start in {duration_text(max(0, hold.start - self._state.time))}"
        )
        return Reason(code="held_for", rule="O4", text=text, for_=self._id(first, item))

    def _of_never_lent(self, unit: PodSet) -> Reason:
        keepers = [a for a in self._state.tree.holders if a not in unit.item.account.path]
        held = _names(keepers, lambda keeper: f"{keeper.name} ({gpu_text(keeper.never_lent)})")
        return Reason(
            code="held_for",
            rule="Q2",
            text=f"the free GPUs are kept for {held}",
            for_=keepers[0].name if keepers else None,
        )

    def _of_others_first(
        self, unit: PodSet, lane: EquivalenceClass, nodes: frozenset[int], free: int
    ) -> Reason | None:
        reserved = self._census.reserved_on(nodes, unit.item)
        if reserved and free + sum(reserved.values()) >= unit.demand:
            text = f"the free GPUs are reserved for {self._names_of(reserved, unit.item)}"
            first = self._id(next(iter(reserved)), unit.item)
            return Reason(code="held_for", rule="R7", text=text, for_=first)
        started = self._census.started_on(nodes, unit.item)
        if not started or free + sum(started.values()) < unit.demand:
            return None
        if self._over(unit, lane) and all(i.account is not unit.item.account for i in started):
            # The reason is the project's allocation, not the workload that started first: it stays
            # the same in each cycle, so that waiting users see no new reason at every start.
            return None
        text = (
            f"{self._names_of(started, unit.item)} came first in the queue and took the free GPUs"
        )
        first = self._id(next(iter(started)), unit.item)
        return Reason(code="behind", rule="O1", text=text, for_=first)

    def _of_full(
        self, unit: PodSet, lane: EquivalenceClass, nodes: frozenset[int], free: int
    ) -> Reason:
        item = unit.item
        until = self._reclaim.protected.get(lane)
        if until is not None:
            left = duration_text(until - self._state.time)
            text = (
                f"the jobs that may be paused for it are in their minimum run time, for {left} more"
            )
            return Reason(code="protected", rule="R8", text=text)
        if not unit.demand:
            text = self._beside(unit, nodes) or "no node has the CPU and memory that it asks for"
            return Reason(code="no_room", rule="P5", text=text)
        total = self._census.devices_on(nodes) * WHOLE_GPU
        held = total - free
        used = f"{gpu_text(held)} of {self._amount_on(nodes, total)} {_be(held)} in use"
        users = self._census.projects_on(nodes)
        has_rivals = any(name != item.workload.project for name in users)
        over = self._over(unit, lane)
        if over is not None and has_rivals:
            text = (
                f"{over.name} holds {gpu_text(over.allocated)} of its fair share of"
                f" {count_text(over.fair_share)}; this asks for {gpu_text(unit.demand)}, and {used}"
            )
            return Reason(code="over_share", rule="R2", text=text)
        if lane in self._reclaim.not_proven:
            text = f"{used}; the search for jobs to pause for it was given up, and is tried again"
            return Reason(code="not_proven", rule="R5", text=text)
        text = self._of_device_memory(unit) or f"{used}{_listing(users)}"
        return Reason(code="no_room", rule="P1", text=text)

    def _amount_on(self, nodes: frozenset[int], total: int) -> str:
        """Return an amount of these nodes' GPUs, with their type if others have another one."""
        types = {self._state.nodes[node].gpu_type for node in nodes}
        if len(types) > 1 or types >= {node.gpu_type for node in self._state.nodes}:
            return count_text(total)
        return f"{count_text(total)} of type {types.pop()}" if any(types) else count_text(total)

    def _over(self, unit: PodSet, lane: EquivalenceClass) -> ProjectNode | None:
        """Return the account whose fair share is too small, if that prevents a reclaim (R2)."""
        if lane not in self._reclaim.over_share:
            return None
        return next(
            (a for a in unit.item.account.path if a.allocated + unit.demand > a.fair_share), None
        )

    def _of_scattered(self, unit: PodSet, nodes: frozenset[int], free: int) -> Reason | None:
        total = len(unit.members)
        fitting = self._census.fitting(unit)
        if 0 < fitting < total:
            text = f"{fitting} of its {total} workers would fit now; it needs all of them at once"
            return Reason(code="gang_incomplete", rule="P4", text=text)
        if free < unit.demand or not unit.demand:
            return None
        beside = any(member.kind.cpu or member.kind.memory for member in unit.members)
        there = f"{count_text(free)} {_be(free)} free"
        text = self._of_device_memory(unit)
        if not text:
            text = f"{there}, but {self._where_free(unit, nodes)}" + (
                " with the CPU and memory that it asks for" if beside else ""
            )
        if beside and (lacks := self._beside(unit, nodes)):
            text = f"{lacks}; {there}"
        return Reason(code="fragmented", rule="P2", text=text)

    def _where_free(self, unit: PodSet, nodes: frozenset[int]) -> str:
        """Return how the free GPUs of these nodes lie, although they add up to the request."""
        most = max(member.kind.devices for member in unit.members)
        if any(member.worker.gpus < WHOLE_GPU for member in unit.members):
            return "not on one device"
        idle = sum(self._state.now.idle[node] for node in nodes)
        return "not on one node" if idle >= most else "only in parts"

    def _of_device_memory(self, unit: PodSet) -> str:
        """Return a worker's lack of device memory on all its nodes, with the holders; "": none.

        Of a fraction only where memory alone lacks. The numbers are of the node where most is free.
        """
        now, kind = self._state.now, unit.members[0].kind
        if kind.is_whole or not kind.devices:
            return ""

        def spare(node: int) -> int:
            return _nth_largest(now.mib[node], kind.devices) - kind.mib_on(now.device_mib[node])

        nodes = sorted(kind.nodes)
        full = [n for n in nodes if _nth_largest(now.milli[n], kind.devices) >= kind.milli]
        best = max(full, key=spare, default=None)
        if best is None or spare(best) >= 0:
            return ""
        held: dict[PlannedWorkload, int] = {}
        for member in self._state.on_node.get(best, ()):
            if (booking := member.booking) is not None:
                held[member.item] = held.get(member.item, 0) + booking.mib * len(booking.devices)
        by = sorted((i for i in held if held[i]), key=lambda item: (-held[item], item.age))
        where = "one GPU" if kind.devices == 1 else f"each of {kind.devices} GPUs of one node"
        size = now.device_mib[best]
        free = max(0, _nth_largest(now.mib[best], kind.devices))
        text = (
            f"needs {kind.mib_on(size)} MiB on {where}; {self._state.nodes[best].name} has at most"
            f" {free} of {size} MiB free"
        )
        return f"{text}, held by {self._names_of(by, unit.item)}" if by else text

    def _beside(self, unit: PodSet, nodes: frozenset[int]) -> str:
        """Return a worker's lack of CPU or memory on every node, with the holders; "": none.

        The numbers are of the node where most is free.
        """
        now, state = self._state.now, self._state
        kind = next((m.kind for m in unit.members if m.kind.cpu or m.kind.memory), None)
        if kind is None or not nodes:
            return ""
        for of_cpu, asked, free in ((True, kind.cpu, now.cpu), (False, kind.memory, now.memory)):
            best = max(sorted(nodes), key=free.__getitem__)
            if asked <= free[best]:
                continue
            node = state.nodes[best]
            total = (node.cpu_milli if of_cpu else node.memory_mib) or 0
            held: dict[PlannedWorkload, int] = {}
            for member in state.on_node.get(best, ()):
                if (booking := member.booking) is not None:
                    amount = booking.cpu if of_cpu else booking.memory
                    held[member.item] = held.get(member.item, 0) + amount
            by = sorted((i for i in held if held[i]), key=lambda item: (-held[item], item.age))
            amount_text = _cpus if of_cpu else _memory
            text = (
                f"needs {amount_text(asked)} on one node; {node.name} has"
                f" {_part(max(0, free[best]), of_cpu=of_cpu)} of {amount_text(total)} free"
            )
            return f"{text}, held by {self._names_of(by, unit.item)}" if by else text
        return ""

    # ---- names

    def _may_name(self, item: PlannedWorkload, reader: PlannedWorkload) -> bool:
        same = item.workload.project == reader.workload.project
        return same or self._state.policy.name_others

    def _name(self, item: PlannedWorkload, reader: PlannedWorkload) -> str:
        """Return a workload's name for readers of another one, or only its kind and project."""
        if self._may_name(item, reader):
            return _label(item)
        return f"a {item.workload.kind} of {item.workload.project}"

    def _id(self, item: PlannedWorkload, reader: PlannedWorkload) -> str | None:
        return item.name if self._may_name(item, reader) else None

    def _names_of(self, items: Iterable[PlannedWorkload], reader: PlannedWorkload) -> str:
        return _names(dict.fromkeys(self._name(item, reader) for item in items), str)

    def _holders_of(self, account: ProjectNode, reader: PlannedWorkload) -> dict[str, int]:
        """Return allocations of a build quota by user. Empty if the reader may not see them."""
        project = account.parent if account.gpu_type and account.parent else account
        if self._state.policy.name_others or project.name == reader.workload.project:
            return self._census.session_holders(account)
        return {}


def _label(item: PlannedWorkload) -> str:
    if item.workload.kind == "session" and item.workload.user:
        return f"the session of {item.workload.user}"
    return item.name


def _allocated(member: PlannedWorker) -> int:
    return member.origin.quota if member.origin else member.kind.quota


def _entitlement(account: ProjectNode) -> str:
    if account.limit < max(account.fair_share, account.quota):
        return f"limit of {count_text(account.limit)}"
    if account.fair_share > account.quota:
        return f"fair share of {count_text(account.fair_share)}"
    return f"quota of {count_text(account.quota)}"


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


def _names(things: Collection[T], name: Callable[[T], str]) -> str:
    shown = [name(thing) for thing in islice(things, _SHOWN)]
    if len(things) > _SHOWN:
        return f"{', '.join(shown)} and {len(things) - _SHOWN} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _listing(held: dict[str, int]) -> str:
    if not held:
        return ""
    most = sorted(held.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = [f"{name} {gpu_text(milli)}" for name, milli in most[:_SHOWN]]
    rest = len(most) - len(shown)
    return ": " + ", ".join(shown) + (f" and {rest} more" if rest else "")
