"""Generations of an elastic job, for processes of Keras's PyTorch back end.

A process enters one generation; for the next it runs its script again by `exec`, with the same pid,
and continues from the checkpoint. Imported with the PyTorch back end only.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from runai.elastic.membership import LEAVE_EXIT_CODE, Membership, StopRequest
from runai.elastic.torch import group
from runai.hub_service.wire.elastic_messages import Target, WorkerPhase

_WAIT_S = 0.01


class Generation:
    """The generation that this process trains in."""

    def __init__(self, membership: Membership, stop: StopRequest, max_gpus: int) -> None:
        self.membership = membership
        self.stop = stop
        """This process's stop request; its handlers are installed from the start on."""
        self.max_gpus = max_gpus
        """The most GPUs of the job."""

    def restart(self, gen: int) -> NoReturn:
        """Leave this generation after a checkpoint, on all ranks after the same update.

        Ranks of the next generation execute their script again, all other ranks exit. Without a
        next generation (a rank got SIGTERM by hand), the remaining ranks wait for one in their new
        run.

        Raises:
            SystemExit: with code 143, on a rank that leaves.
        """
        group.leave_group()
        target = self.membership.read_target()
        while gen > self.membership.gen and (target is None or target.gen < gen):
            time.sleep(_WAIT_S)  # another rank has read it; this node's file system may lag
            target = self.membership.read_target()
        if target is not None and self.membership.is_excluded_by(target):
            self._leave()
        self._restart_script()

    def restart_after_loss(self, error: BaseException) -> NoReturn:
        """Restart from the newest checkpoint: a lost peer's gradients are missing in the update."""
        group.abandon_group(error)
        self._restart_script()

    def _leave(self) -> NoReturn:
        self.membership.report(WorkerPhase.LEFT)
        raise SystemExit(LEAVE_EXIT_CODE)

    def _restart_script(self) -> NoReturn:
        """Execute this script again in this process; leave instead after SIGTERM."""
        # Until the new run has its handlers: SIGUSR1 must not end it, SIGTERM may.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.stop.is_requested:
            self._leave()
        self.membership.report(WorkerPhase.STARTING)
        atexit._run_exitfuncs()  # data loaders' processes end, reports are sent  # noqa: SLF001
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this script


_entered: list[Generation] = []


def current() -> Generation | None:
    """Return this process's generation; None for a job of fixed size."""
    return _entered[0] if _entered else None


def enter(membership: Membership, form: Callable[[group.Meeting], None]) -> Generation:
    """Wait for a target with this process, meet its peers, and form their group.

    Args:
        membership: of this process in its job.
        form: forms the process group after the rendezvous; not called for a single rank.

    Raises:
        SystemExit: if this process must leave.
    """
    stop = StopRequest()
    stop.listen()
    membership.report(WorkerPhase.READY)
    while True:
        target = membership.read_target()
        if stop.is_requested or (target is not None and membership.is_excluded_by(target)):
            membership.report(WorkerPhase.LEFT)
            raise SystemExit(LEAVE_EXIT_CODE)
        if target is not None and membership.rank_in(target) is not None:
            try:
                _meet_peers(membership, stop, target, form)
                break
            except group.GroupLost as error:
                group.abandon_group(error)
        time.sleep(_WAIT_S)
    membership.gen = target.gen
    membership.report(WorkerPhase.RUNNING)
    _entered[:] = [Generation(membership, stop, target.most)]
    return _entered[0]


def _meet_peers(
    membership: Membership, stop: StopRequest, target: Target, form: Callable[[group.Meeting], None]
) -> None:
    """Form the group of a target's ranks; do nothing for a single rank."""
    rank = membership.rank_in(target)
    if rank is None or len(target.ranks) == 1:
        return

    def is_outdated() -> bool:
        newest = membership.read_target()
        return stop.is_requested or (newest is not None and newest.gen > target.gen)

    form(group.meet(target.store, rank, len(target.ranks), "", is_outdated))


@contextmanager
def restart_after_lost_peer() -> Iterator[None]:
    """Run a block of collectives; after a lost peer, restart in the next generation."""
    try:
        yield
    except RuntimeError as error:
        generation = current()
        if generation is None or not group.is_peer_loss(error):
            raise
        generation.restart_after_loss(error)
