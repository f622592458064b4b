"""The process group of one generation: how its workers meet, agree, and part.

Knows stores, collectives and their failures; neither who decides (`membership`) nor what is trained
(`resizing`). Each generation has a store of its own, opened by its first rank, so that any rank may
leave and nobody's store is needed afterwards.
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
from torch._C._distributed_c10d import (  # torch.distributed has them for everybody, untyped
    PrefixStore,
    Store,
    TCPStore,
)

PEER_TIMEOUT = timedelta(seconds=45)
"""How long a collective waits for a peer that hangs; one that died is seen at once."""
_STORE_TIMEOUT = timedelta(seconds=20)
_PAUSE_S = 0.005
_OF_PEERS = ("gloo", "NCCL", "Application timeout caused pair closure")
"""What stands in the messages of collectives that failed; some of gloo's lack its path."""


class GroupLost(RuntimeError):
    """The group cannot be formed or used: a peer is gone, or a newer generation was called."""


@dataclass(frozen=True)
class Meeting:
    """All ranks of a generation are there, each with the card that it showed."""

    rank: int
    cards: tuple[str, ...]
    """What each rank said of itself, by rank."""
    store: Store

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.cards)


def meet(
    address: str,
    rank: int,
    ranks: int,
    card: str,
    give_up: Callable[[], bool],
) -> Meeting:
    """Wait until all ranks of a generation are at its store, and read their cards.

    Args:
        address: `host:port` of the generation's own store; rank 0 opens it.
        rank: of this worker.
        ranks: of the generation.
        card: what the others are to know of this worker before the group is formed.
        give_up: asked while waiting, a hundred times a second: whether to leave off.

    Raises:
        GroupLost: if `give_up` said so.
        OSError: if rank 0 cannot open the store.
    """
    store = _open_store(address, give_up) if rank == 0 else _find_store(address, give_up)
    try:
        store.set(f"card/{rank}", card)
        keys = [f"card/{other}" for other in range(ranks)]
        while not store.check(keys):
            _pause(give_up)
        return Meeting(rank, tuple(store.get(key).decode() for key in keys), store)
    except (dist.DistError, RuntimeError) as error:
        if isinstance(error, GroupLost):
            raise
        raise GroupLost(f"The store {address} went away: {error}") from error


def form_group(meeting: Meeting, *, cuda: bool) -> None:
    """Make the default process group of those who met; milliseconds, as all are there.

    Raises:
        GroupLost: if one of them went meanwhile.
    """
    try:
        dist.init_process_group(
            # What is agreed upon is on the CPU in any case.
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
    """Part in order: nobody closes a connection that another still reads from.

    Whoever comes out of a last collective knows that all are out of those before; if this one
    breaks, nothing is lost any more.
    """
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.all_reduce(torch.zeros(1))
        dist.destroy_process_group()


def is_loss(error: BaseException) -> bool:
    """Say whether an error is that of a group of which a peer is gone, and not of a script."""
    text = str(error)
    return isinstance(error, GroupLost | dist.DistError) or any(word in text for word in _OF_PEERS)


def abandon_group(error: BaseException | None = None) -> None:
    """Drop a group of which a peer is gone: nothing is waited for.

    Connections close with the last reference to a collective's `Work`. Until then a survivor that
    waits for this one waits until the timeout; so callers forget theirs before.

    Args:
        error: that told of the loss; the frames that it passed through are cleared, for the failed
            collective is in them.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    if dist.is_initialized():
        # NCCL's kernels wait for ever otherwise; gloo has nothing to abort.
        with contextlib.suppress(RuntimeError, AttributeError):
            typing.cast("dist.ProcessGroup", dist.group.WORLD).abort()
        with contextlib.suppress(RuntimeError, ValueError):
            dist.destroy_process_group()


class Agreement:
    """What all ranks know at the same update, though each saw it at another time.

    Each posts what it has seen after an update and reads the answer after the next: nobody waits
    for a collective that the update in between has not long finished.
    """

    def __init__(self, ranks: int) -> None:
        """Nothing is posted yet; one rank alone agrees with itself without a group."""
        self._ranks = ranks
        self._posted: tuple[torch.Tensor, dist.Work | None] | None = None

    def exchange(
        self, rank: int, gen: int, *, leaving: bool, read: Sequence[int] = (0,)
    ) -> tuple[int, Sequence[int]]:
        """Post what this rank has seen; return what all had seen by the last exchange.

        Args:
            rank: of this worker.
            gen: the newest generation that it has seen.
            leaving: whether it is to leave.
            read: numbers that are equal on all ranks that read the same data; the first one counts
                the samples of the epoch so far.

        Returns:
            The highest generation, 0 at first, and the ranks that are to leave.

        Raises:
            GroupLost: if a peer is gone.
            ValueError: if ranks have read different data.
        """
        agreed = self.conclude()
        # The largest of a number and of its negative tell whether all ranks have the same one.
        wanted = [int(leaving and other == rank) for other in range(self._ranks)]
        seen = torch.tensor([gen, *wanted, *read, *(-n for n in read)], dtype=torch.int64)
        self._posted = seen, self._reduce(seen)
        # Alone there is nobody to wait for: what was seen holds now.
        return self.conclude() if self._ranks == 1 else agreed

    def conclude(self) -> tuple[int, Sequence[int]]:
        """Read the answer to what was posted last, without posting anew.

        Raises:
            GroupLost: if a peer is gone.
            ValueError: if ranks had read different data.
        """
        if self._posted is None:
            return 0, ()
        (seen, work), self._posted = self._posted, None
        if work is not None:
            try:
                work.wait()
            except RuntimeError as error:
                raise GroupLost(str(error)) from error
        gen, *rest = seen.tolist()
        leaving, read = rest[: self._ranks], rest[self._ranks :]
        most, least = read[: len(read) // 2], [-n for n in read[len(read) // 2 :]]
        if most != least:
            counts = f"{least[0]} and {most[0]}" if most[0] != least[0] else "different"
            raise ValueError(
                f"Ranks had read {counts} samples of an epoch by the same update: this data set "
                "gives each rank its own. Leave out its division by rank: elastic.DataLoader reads "
                "all of it on each rank, and divides it. If samples are random by other generators "
                "than the global ones of PyTorch, Python and NumPy, pass augment=False."
            )
        return gen, [rank for rank, wanted in enumerate(leaving) if wanted]

    def _reduce(self, seen: torch.Tensor) -> dist.Work | None:
        if self._ranks == 1:
            return None
        try:
            return dist.all_reduce(seen, op=dist.ReduceOp.MAX, async_op=True)
        except RuntimeError as error:
            raise GroupLost(str(error)) from error


def _open_store(address: str, give_up: Callable[[], bool]) -> Store:
    host, port = _parts(address)
    deadline = time.monotonic() + _STORE_TIMEOUT.total_seconds()
    while True:
        try:
            return TCPStore(
                host, port, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT
            )
        except (dist.DistError, RuntimeError) as error:
            # Who had the port when it was picked may be leaving it just now.
            if "EADDRINUSE" not in str(error) or time.monotonic() > deadline:
                raise OSError(
                    errno.EADDRINUSE, f"cannot open the store {address}: {error}"
                ) from error
            _pause(give_up)


def _find_store(address: str, give_up: Callable[[], bool]) -> Store:
    host, port = _parts(address)
    while True:
        # TCPStore itself waits without asking whether to give up, and writes to standard error.
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            break
        _pause(give_up)
    try:
        return TCPStore(host, port, is_master=False, timeout=_STORE_TIMEOUT)
    except (dist.DistError, RuntimeError) as error:
        raise GroupLost(f"The store {address} went away: {error}") from error


def _pause(give_up: Callable[[], bool]) -> None:
    if give_up():
        raise GroupLost("A newer generation was called, or this worker is to leave.")
    time.sleep(_PAUSE_S)


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
