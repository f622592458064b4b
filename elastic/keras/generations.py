"""Train in the generations that a cluster calls, with processes of Keras's PyTorch back end.

Knows how a process enters a generation, and how it starts anew for the next: it runs its script
again in its own place (`exec`: the same process to whoever started it), which goes on from the
checkpoint. Called by `ranks` and `checkpoint`, with the PyTorch back end only.
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

from runai.elastic.membership import LEAVE_EXIT_CODE, Membership, Stop
from runai.elastic.torch import group
from runai.hub_service.wire.elastic_messages import Target, WorkerPhase

_WAIT_S = 0.01


class Generation:
    """The generation that this process trains in."""

    def __init__(self, membership: Membership, stop: Stop, most: int) -> None:
        self.membership = membership
        self.stop = stop
        """Whether this process was told to go; listened to from the start on."""
        self.most = most
        """GPUs that the job can have."""

    def go_on(self, gen: int) -> NoReturn:
        """Leave this generation, all ranks after the same update and with a checkpoint saved.

        Who is wanted in the generation that was called starts anew, the others leave. Where none
        was called yet (a rank was told to go by hand), who was not told waits for one in its new
        run.

        Raises:
            SystemExit: with the code of who leaves before the end.
        """
        group.leave_group()
        target = self.membership.look()
        while gen > self.membership.gen and (target is None or target.gen < gen):
            time.sleep(_WAIT_S)  # another rank saw it: a file system may be slow to show it here
            target = self.membership.look()
        if target is not None and self.membership.is_excluded_by(target):
            self._leave()
        self._start_anew()

    def go_on_after_loss(self, error: BaseException) -> NoReturn:
        """Start anew from the newest checkpoint: a peer is gone, and with it an update's sum."""
        group.abandon_group(error)
        self._start_anew()

    def _leave(self) -> NoReturn:
        self.membership.tell(WorkerPhase.LEFT)
        raise SystemExit(LEAVE_EXIT_CODE)

    def _start_anew(self) -> NoReturn:
        # Until the new run listens: a new target must not be its death, to be told to go may.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.stop.wanted:
            self._leave()
        self.membership.tell(WorkerPhase.STARTING)
        atexit._run_exitfuncs()  # data loaders' processes end, reports are sent  # noqa: SLF001
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this script


_entered: list[Generation] = []


def current() -> Generation | None:
    """Return the generation that this process has entered; None where nobody resizes the job."""
    return _entered[0] if _entered else None


def enter(membership: Membership, form: Callable[[group.Meeting], None]) -> Generation:
    """Wait until the cluster wants this process, meet the others, and form their group.

    Args:
        membership: of this process in its job.
        form: makes the process group of those who met; it is not asked for one rank alone.

    Raises:
        SystemExit: if this process is not wanted any more.
    """
    stop = Stop()
    stop.listen()
    membership.tell(WorkerPhase.READY)
    while True:
        target = membership.look()
        if stop.wanted or (target is not None and membership.is_excluded_by(target)):
            membership.tell(WorkerPhase.LEFT)
            raise SystemExit(LEAVE_EXIT_CODE)
        if target is not None and membership.rank_in(target) is not None:
            try:
                _meet(membership, stop, target, form)
                break
            except group.GroupLost as error:
                group.abandon_group(error)
        time.sleep(_WAIT_S)
    membership.gen = target.gen
    membership.tell(WorkerPhase.RUNNING)
    _entered[:] = [Generation(membership, stop, target.most)]
    return _entered[0]


def _meet(
    membership: Membership, stop: Stop, target: Target, form: Callable[[group.Meeting], None]
) -> None:
    rank = membership.rank_in(target)
    if rank is None or len(target.ranks) == 1:
        return

    def give_up() -> bool:
        newest = membership.look()
        return stop.wanted or (newest is not None and newest.gen > target.gen)

    form(group.meet(target.store, rank, len(target.ranks), "", give_up))


@contextmanager
def peers() -> Iterator[None]:
    """Do what needs all ranks; where one was lost, go on in the next generation."""
    try:
        yield
    except RuntimeError as error:
        generation = current()
        if generation is None or not group.is_loss(error):
            raise
        generation.go_on_after_loss(error)
