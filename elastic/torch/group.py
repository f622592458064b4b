"""The process group of one generation: rendezvous, agreement, and shutdown.

Each generation has its own store, opened by its first rank, so that any rank may leave without
breaking a later group.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
import traceback
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (  # torch.distributed exports them untyped
    PrefixStore,
    Store,
    TCPStore,
)

PEER_TIMEOUT = timedelta(seconds=45)
"""Timeout of a collective for a hung peer; a dead one is detected at once."""
_STORE_TIMEOUT = timedelta(seconds=20)
_PAUSE_S = 0.005
_PEER_LOSS_MARKERS = ("gloo", "NCCL", "Application timeout caused pair closure")
"""Markers in messages of failed collectives; some of gloo's lack its path."""


class GroupLost(RuntimeError):
    """Error: a peer is gone, or a newer generation replaces the group."""


@dataclass(frozen=True)
class Meeting:
    """The rendezvous of one generation: all ranks with their cards."""

    rank: int
    cards: tuple[str, ...]
    """The card of each rank, by rank."""
    store: Store

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.cards)


def meet(
    address: str,
    rank: int,
    ranks: int,
    card: str,
    give_up: Callable[[], bool],
) -> Meeting:
    """Wait for all ranks of a generation at its store, and read their cards.

    Args:
        address: `host:port` of the generation's own store; rank 0 opens it.
        rank: of this worker.
        ranks: of the generation.
        card: this worker's information for its peers, read before the group is formed.
        give_up: polled every 5 ms; True aborts the wait.

    Raises:
        GroupLost: if `give_up` returned True, or the store went away.
        OSError: if rank 0 cannot open the store.
    """
    store = _open_store(address, give_up) if rank == 0 else _join_store(address, give_up)
    try:
        store.set(f"card/{rank}", card)
        keys = [f"card/{other}" for other in range(ranks)]
        while not store.check(keys):
            _sleep_unless(give_up)
        return Meeting(rank, tuple(store.get(key).decode() for key in keys), store)
    except (dist.DistError, RuntimeError) as error:
        if isinstance(error, GroupLost):
            raise
        raise GroupLost(f"The store {address} went away: {error}") from error


def form_group(meeting: Meeting, *, cuda: bool) -> None:
    """Form the default process group after a rendezvous; it takes milliseconds.

    Raises:
        GroupLost: if a rank left meanwhile.
    """
    try:
        dist.init_process_group(
            # Agreements use CPU tensors in any case.
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=PrefixStore("group", meeting.store),
            rank=meeting.rank,
            world_size=meeting.ranks,
            timeout=PEER_TIMEOUT,
        )
    except (dist.DistError, RuntimeError) as error:
        abandon_group(error)
        raise GroupLost(f"A worker left while the group was formed: {error}") from error


def leave_group() -> None:
    """Leave the group after a last collective: no rank then closes connections in use.

    A rank that completes it knows that all ranks completed the earlier ones; its own failure is
    harmless.
    """
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.all_reduce(torch.zeros(1))
        dist.destroy_process_group()


def is_peer_loss(error: BaseException) -> bool:
    """Return True if an error means a lost peer, not a bug of the script."""
    text = str(error)
    return isinstance(error, GroupLost | dist.DistError) or any(
        word in text for word in _PEER_LOSS_MARKERS
    )


def abandon_group(error: BaseException | None = None) -> None:
    """Abort a group with a lost peer, without waiting.

    Connections close with the last reference to a collective's `Work`; until then surviving peers
    wait for this rank until their timeout. So callers drop their references first.

    Args:
        error: of the failed collective; the frames of its traceback are cleared, since they
            reference the collective.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    if dist.is_initialized():
        # Else NCCL's kernels wait forever; gloo has nothing to abort.
        with contextlib.suppress(RuntimeError, AttributeError):
            typing.cast("dist.ProcessGroup", dist.group.WORLD).abort()
        with contextlib.suppress(RuntimeError, ValueError):
            dist.destroy_process_group()


class Agreement:
    """An agreement of all ranks on generation and leaving ranks, at the same update.

    Each rank posts its view after an update and reads the result after the next: the collective has
    finished during that update, so no rank waits.
    """

    def __init__(self, ranks: int) -> None:
        """Set the number of ranks; a single rank needs no group."""
        self._ranks = ranks
        self._posted: tuple[torch.Tensor, dist.Work | None] | None = None

    def exchange(
        self, rank: int, gen: int, *, must_leave: bool, read: Sequence[int] = (0,)
    ) -> tuple[int, Sequence[int]]:
        """Post this rank's view; return the combined view of the previous exchange.

        Args:
            rank: of this worker.
            gen: the newest generation that this worker has read.
            must_leave: True if it must leave.
            read: numbers that are equal on all ranks that read the same data; the first one counts
                the samples of the epoch so far.

        Returns:
            The highest generation, 0 at first, and the leaving ranks.

        Raises:
            GroupLost: if a peer is gone.
            ValueError: if ranks have read different data.
        """
        agreed = self.conclude()
        # MAX of a number and of its negative show whether all ranks have the same one.
        leave_flags = [int(must_leave and other == rank) for other in range(self._ranks)]
        view = torch.tensor([gen, *leave_flags, *read, *(-n for n in read)], dtype=torch.int64)
        self._posted = view, self._start_reduction(view)
        # A single rank's view is valid at once.
        return self.conclude() if self._ranks == 1 else agreed

    def conclude(self) -> tuple[int, Sequence[int]]:
        """Return the result of the last exchange, without posting again.

        Raises:
            GroupLost: if a peer is gone.
            ValueError: if ranks had read different data.
        """
        if self._posted is None:
            return 0, ()
        (view, work), self._posted = self._posted, None
        if work is not None:
            try:
                work.wait()
            except RuntimeError as error:
                raise GroupLost(str(error)) from error
        gen, *rest = view.tolist()
        leave_flags, read = rest[: self._ranks], rest[self._ranks :]
        highest, lowest = read[: len(read) // 2], [-n for n in read[len(read) // 2 :]]
        if highest != lowest:
            counts = f"{lowest[0]} and {highest[0]}" if highest[0] != lowest[0] else "different"
            raise ValueError(
                f"Ranks had read {counts} samples of an epoch by the same update: this data set "
                "gives each rank its own. Leave out its division by rank: elastic.DataLoader reads "
                "all of it on each rank, and divides it. If samples are random by other generators "
                "than the global ones of PyTorch, Python and NumPy, pass augment=False."
            )
        return gen, [rank for rank, leaves in enumerate(leave_flags) if leaves]

    def _start_reduction(self, view: torch.Tensor) -> dist.Work | None:
        if self._ranks == 1:
            return None
        try:
            return dist.all_reduce(view, op=dist.ReduceOp.MAX, async_op=True)
        except RuntimeError as error:
            raise GroupLost(str(error)) from error


def _open_store(address: str, give_up: Callable[[], bool]) -> Store:
    """Open the store; wait while an earlier process still has the port."""
    host, port = _host_and_port(address)
    deadline = time.monotonic() + _STORE_TIMEOUT.total_seconds()
    while True:
        try:
            return TCPStore(
                host, port, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT
            )
        except (dist.DistError, RuntimeError) as error:
            if "EADDRINUSE" not in str(error) or time.monotonic() > deadline:
                raise OSError(
                    errno.EADDRINUSE, f"cannot open the store {address}: {error}"
                ) from error
            _sleep_unless(give_up)


def _join_store(address: str, give_up: Callable[[], bool]) -> Store:
    """Connect to the store as soon as rank 0 listens."""
    host, port = _host_and_port(address)
    while True:
        # TCPStore's own wait cannot be aborted, and writes to standard error.
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            break
        _sleep_unless(give_up)
    try:
        return TCPStore(host, port, is_master=False, timeout=_STORE_TIMEOUT)
    except (dist.DistError, RuntimeError) as error:
        raise GroupLost(f"The store {address} went away: {error}") from error


def _sleep_unless(give_up: Callable[[], bool]) -> None:
    """Sleep 5 ms; raise GroupLost if the wait is to be given up."""
    if give_up():
        raise GroupLost("A newer generation was called, or this worker is to leave.")
    time.sleep(_PAUSE_S)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
