"""The cluster while a plan is being made: who holds what now, and who will.

Knows every worker's standing, keeps rooms and accounts in step with it, and takes back what was
only tried (`mark`, `roll_back`). Knows no rule about who may. Built by `cycle` from a snapshot,
changed by `placement`, `reclaim` and `cycle`, thrown away with the plan made.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from runai.hub_service.scheduler.kinds import Booking, Kind, Kinds
from runai.hub_service.scheduler.model import (
    Node,
    Project,
    Snapshot,
    Worker,
    WorkerState,
    Workload,
)
from runai.hub_service.scheduler.quantity import WHOLE_GPU
from runai.hub_service.scheduler.room import Room
from runai.hub_service.scheduler.tree import Account, ProjectTree


class Standing(Enum):
    """What a worker does while the plan is made."""

    PENDING = 0
    RUNNING = 1
    GOING = 2
    """Was told to stop, by this plan or before; still on its devices now, not later."""
    RESERVED = 3
    STARTED = 4
    """Starts by this plan."""
    MOVED = 5
    """Still on its old devices now, on new ones later."""


_HOLDS_LATER = {Standing.RUNNING, Standing.RESERVED, Standing.STARTED, Standing.MOVED}


class Member:
    """A worker of an item; `origin` is its booking in the snapshot, `booking` the present one."""

    __slots__ = ("booking", "index", "item", "kind", "origin", "standing", "was", "worker")

    def __init__(self, worker: Worker, index: int, item: Item, kind: Kind) -> None:
        self.worker = worker
        self.index = index
        self.item = item
        self.kind = kind
        self.standing = Standing.PENDING
        self.was = Standing.PENDING
        self.booking: Booking | None = None
        self.origin: Booking | None = None


class Item:
    """A workload with its account and its workers."""

    __slots__ = (
        "account",
        "age",
        "is_fixed",
        "is_known",
        "members",
        "minimum",
        "name",
        "rank",
        "workload",
    )

    def __init__(self, workload: Workload, account: Account) -> None:
        self.workload = workload
        self.name = workload.name
        self.account = account
        self.members: list[Member] = []
        self.minimum = min(workload.minimum, len(workload.workers))
        self.is_known = True
        """Whether its project is one; without one it may only hold what it has."""
        self.is_fixed = not workload.is_preemptible
        """A session within the build quota: never preempted (Q1)."""
        self.rank = workload.rank
        self.age = (workload.submitted, workload.name)

    def count(self, *standings: Standing) -> int:
        """Count its workers in these standings."""
        return sum(1 for member in self.members if member.standing in standings)


class State:
    """Rooms, accounts and items, changed together by `set` alone."""

    def __init__(self, snapshot: Snapshot, tree: ProjectTree) -> None:
        """Book everything that the snapshot says is running, stopping or reserved."""
        self.snapshot = snapshot
        self.tree = tree
        self.nodes: Sequence[Node] = sorted(snapshot.nodes, key=lambda node: node.name)
        self.index_of = {node.name: index for index, node in enumerate(self.nodes)}
        spread = snapshot.policy.packing == "spread"
        self.now = Room(self.nodes, spread=spread)
        self.later = Room(self.nodes, spread=spread)
        self._kinds = Kinds(self.nodes)
        self.book = self._kinds.book
        self._journal: list[tuple[Member, Standing, Booking | None]] = []
        self.touched: set[Account] = set()
        """Accounts whose allocation changed since the order last looked."""
        self.victim_looks = 0
        self._leaving: dict[int, list[Member]] | None = None
        self.items: list[Item] = []
        for workload in sorted(snapshot.workloads, key=lambda w: (w.submitted, w.name)):
            account = tree.queue_of(workload.project)
            is_known = account is not None
            item = Item(workload, account or Account(Project(name=workload.project), None))
            item.is_known = is_known
            self._load(item)
        self.forget_journal()

    def _load(self, item: Item) -> None:
        self.items.append(item)
        node_types = _node_types(item)
        for index, worker in enumerate(item.workload.workers):
            member = Member(worker, index, item, self._kinds.of(worker, node_types))
            item.members.append(member)
            state = worker.state
            if state is not WorkerState.PENDING:
                booking = self._booking_in_snapshot(worker, member.kind)
                member.origin = booking
                if state is WorkerState.RUNNING:
                    self.set(member, Standing.RUNNING, booking)
                elif state is WorkerState.STOPPING:
                    self.set(member, Standing.GOING, None)
                # Reserved ones wait until `reservations` has checked that they still hold.
            if state is not WorkerState.STOPPING:
                # A paused job counts as pending; one that is stopping asks for nothing now.
                wanted = (member.origin or member.kind).quota
                for account in item.account.path:
                    account.requested += wanted
            member.was = member.standing if state is not WorkerState.RESERVED else Standing.RESERVED

    def _booking_in_snapshot(self, worker: Worker, kind: Kind) -> Booking:
        index = self.index_of.get(worker.node or "", -1)
        known = self.nodes[index].devices if index >= 0 else 0
        devices = tuple(d for d in sorted(set(worker.devices)) if d < known)
        return self.book(kind, index, devices)

    # ---- changes

    def set(self, member: Member, standing: Standing, booking: Booking | None) -> None:
        """Change a worker's standing; rooms and accounts follow."""
        self._journal.append((member, member.standing, member.booking))
        self._leaving = None
        self._apply(member, standing, booking)

    def _apply(self, member: Member, standing: Standing, booking: Booking | None) -> None:
        old_standing, old = member.standing, member.booking
        member.standing, member.booking = standing, booking
        before = self._now_bookings(old_standing, old, member.origin)
        after = self._now_bookings(standing, booking, member.origin)
        if before != after:
            for gone in before:
                self.now.take(gone, -1)
            for new in after:
                self.now.take(new)
        held = old if old_standing in _HOLDS_LATER else None
        holds = booking if standing in _HOLDS_LATER else None
        if held is holds:
            return
        if held is not None:
            self.later.take(held, -1)
        if holds is not None:
            self.later.take(holds)
        change = (holds.quota if holds else 0) - (held.quota if held else 0)
        if change:
            fixed = member.item.is_fixed
            for account in member.item.account.path:
                account.allocated += change
                if fixed:
                    account.build += change
                self.touched.add(account)

    @staticmethod
    def _now_bookings(
        standing: Standing, booking: Booking | None, origin: Booking | None
    ) -> tuple[Booking, ...]:
        match standing:
            case Standing.PENDING:
                return ()
            case Standing.GOING:
                return (origin,) if origin else ()
            case Standing.MOVED:
                return tuple(b for b in (origin, booking) if b)
            case _:
                return (booking,) if booking else ()

    @property
    def looks(self) -> int:
        """Count the candidates looked at so far: what the growth of the cost is measured by."""
        return self.now.looks + self.later.looks + self.victim_looks

    def capacity(self) -> int:
        """Count the milli-GPU to share: open nodes, and what is in use on closed ones."""
        total = 0
        for index, node in enumerate(self.nodes):
            devices = node.devices if node.schedulable else node.devices - self.now.idle[index]
            total += devices * WHOLE_GPU
        return total

    def leaving(self, booking: Booking) -> list[Member]:
        """Give the workers that must leave before a reservation here can start."""
        if self._leaving is None:
            self._leaving = {}
            for item in self.items:
                for member in item.members:
                    if member.origin and member.standing in {Standing.GOING, Standing.MOVED}:
                        self._leaving.setdefault(member.origin.node, []).append(member)
        on_node = self._leaving.get(booking.node, [])
        wanted = set(booking.devices)
        on_devices = [m for m in on_node if m.origin and wanted.intersection(m.origin.devices)]
        if on_devices or self._is_free_now(booking):
            return on_devices
        return list(on_node)  # they have the CPU or the memory of the node that it needs

    def _is_free_now(self, booking: Booking) -> bool:
        # The booking itself is counted in, so nothing may be overdrawn.
        return self.now.cpu[booking.node] >= 0 and self.now.memory[booking.node] >= 0

    def mark(self) -> int:
        """Remember this point for `roll_back`."""
        return len(self._journal)

    def roll_back(self, mark: int) -> None:
        """Undo every change since a mark, latest first."""
        journal = self._journal
        while len(journal) > mark:
            member, standing, booking = journal.pop()
            self._apply(member, standing, booking)

    def forget_journal(self) -> None:
        """Make every change so far final."""
        self._journal.clear()

    def release(self, member: Member) -> None:
        """Take a victim's devices back: a running worker goes, a reservation just ends."""
        if member.standing is Standing.RUNNING or (
            member.standing is Standing.MOVED and member.was is Standing.RUNNING
        ):
            self.set(member, Standing.GOING, None)
        else:
            self.set(member, Standing.PENDING, None)


def _node_types(item: Item) -> tuple[tuple[str, ...], ...]:
    """Collect what its project and each ancestor restrict a workload to (P5)."""
    restrictions = [account.project.node_types for account in item.account.path]
    is_job = item.workload.kind == "job"
    chosen = [types.train if is_job else types.build for types in restrictions]
    return tuple(allowed for allowed in chosen if allowed is not None)
