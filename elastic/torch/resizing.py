"""A job that is resized while it runs: who leaves, who stays, and where a new group goes on.

Knows the order of a switch, between two updates, and of going on after a loss; who is wanted is
`membership`'s, how a group is formed `group`'s, what is trained the job's. Attached by `job`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

import runai.elastic
from runai.elastic.membership import LEAVE_EXIT_CODE, Membership, Stop
from runai.elastic.torch import group
from runai.elastic.torch.checkpoint import Saver, load
from runai.elastic.torch.sharing import share_state
from runai.hub_service.wire.elastic_messages import Reason, Target, WorkerPhase

_WAIT_S = 0.01
_CHECKPOINT_EVERY_S = 600.0


@dataclass(frozen=True, slots=True)
class Resized:
    """What `on_resize` callbacks are told."""

    generation: int
    rank: int
    ranks: int
    before: int
    """How many ranks there were."""


_callbacks: list[Callable[[Resized], object]] = []


def on_resize(callback: Callable[[Resized], object]) -> Callable[[Resized], object]:
    """Have a function called on each rank after each resize, before the next update."""
    _callbacks.append(callback)
    return callback


class Trained(Protocol):
    """What is asked of a job; `runai.elastic.torch.Job` is one."""

    module: nn.Module
    rank: int
    ranks: int
    global_batch: int
    read: tuple[int, ...]
    on_failure: Callable[[Exception], bool] | None

    @property
    def update(self) -> int:
        """Updates so far."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that a rank needs to go on."""

    def load_state_dict(self, saved: Any) -> None:  # noqa: ANN401 - a state
        """Go on from there."""

    def release(self) -> None:
        """Let go of the process group."""

    def replan(self, rank: int, ranks: int) -> None:
        """Go on in the process group that there is now."""


class Resizing:
    """Keeps one job in the generations that its cluster calls, and its checkpoints."""

    def __init__(
        self,
        job: Trained,
        *,
        checkpoint: Path | None = None,
        every: int | None = None,
        membership: Membership | None = None,
        stop: Stop | None = None,
    ) -> None:
        """Take the job, not yet trained; `join` is next.

        Args:
            job: as the script built it.
            checkpoint: directory; None: nothing is kept.
            every: updates between checkpoints; None: ten minutes.
            membership: in the job's cluster; None: nobody resizes, but SIGTERM pauses.
            stop: whether this worker was told to go.
        """
        self._job, self._membership, self._stop = job, membership, stop or Stop()
        self._saver = Saver(checkpoint) if checkpoint else None
        self._every = every
        self._saved_at = time.monotonic()
        self._agreement = group.Agreement(1)
        self._trains = False
        self._names: Sequence[str] = ()
        self._buffers: list[Tensor] = []

    def join(self) -> None:
        """Begin where the others are, or where the newest checkpoint is; wait to be wanted."""
        self._stop.listen()
        if self._membership is not None:
            self._membership.tell(WorkerPhase.READY)
            self._enter()
            return
        self._restore()
        if self._job.ranks > 1:
            self._share(0)
        self._settle()

    def after_update(self) -> None:
        """Look whether anything is wanted, and obey; checkpoint and tell where nothing is."""
        membership = self._membership
        gen = 0
        if membership is not None and (target := membership.look()) is not None:
            gen = target.gen
        self._keep_buffers()
        now = membership.gen if membership else 0
        try:
            seen = self._agreement.exchange(
                self._job.rank, gen, leaving=self._stop.wanted, read=self._job.read
            )
            if seen[0] > now or seen[1]:
                # What was posted meanwhile is later news, and the same for all.
                self._switch(*(self._agreement.conclude() if self._job.ranks > 1 else seen))
                return
        except group.GroupLost as error:
            if membership is None:
                raise
            self._regroup(error)
            return
        if membership is not None:
            samples = self._job.update * self._job.global_batch
            membership.progress(
                self._job.update,
                samples,
                runai.elastic.gpus,
                global_batch=self._job.global_batch,
                steps=runai.elastic.steps,
            )
        self._checkpoint_if_due()

    def replanned(self) -> None:
        """Agree among the ranks that there are now: a hook of the script formed another group."""
        self._agreement = group.Agreement(self._job.ranks)

    def recover(self, error: Exception) -> bool:
        """Go on after an error within an update: True if a peer was lost and a new group formed."""
        if self._job.ranks == 1 or not group.is_loss(error):
            return False
        with contextlib.suppress(group.GroupLost):
            self._agreement.conclude()  # a peer whose data ended earlier is gone: that is the cause
        if self._membership is None:
            return False
        self._regroup(error)
        return True

    def finish(self) -> None:
        """Save what was trained; nobody is wanted any more. The script goes on as it likes."""
        try:
            self._agreement.conclude()
        except group.GroupLost as error:
            self._job.release()
            group.abandon_group(error)
        if self._saver is not None and self._job.rank == 0:
            self._saver.save(self._job.state_dict(), self._job.update)
        if self._membership is not None:
            self._job.release()
            group.leave_group()
            self._membership.tell(WorkerPhase.RUNNING, self._job.update)
        self._stop.close()

    # ---- from one generation to the next

    def _switch(self, gen: int, leaving: Sequence[int]) -> None:
        """Part from the group that all ranks are still in, after the same update."""
        job, membership = self._job, self._membership
        staying = [rank for rank in range(job.ranks) if rank not in leaving]
        if membership is None:
            staying = []  # nobody would call the others together again
        elif gen > membership.gen:
            target = self._target_of(gen)
            names = {_last(name) for name in target.ranks}
            staying = [rank for rank in staying if _last(self._names[rank]) in names]
        job.release()
        group.leave_group()
        if job.rank in staying:
            self._enter()
        else:
            self._leave(save=not staying and job.rank == 0)

    def _regroup(self, error: Exception) -> None:
        """Go on without a lost peer, from this rank's last update; the most advanced rank leads."""
        self._job.release()
        self._agreement = group.Agreement(1)
        group.abandon_group(error)
        # Weights change at the boundary only, what else forward passes wrote is taken back.
        with torch.no_grad():
            for buffer, kept in zip(self._job.module.buffers(), self._buffers, strict=False):
                buffer.copy_(kept)
        self._enter()

    def _enter(self) -> None:
        """Train in the newest generation that wants this worker, once it can be formed."""
        before = self._job.ranks if self._trains else 0
        while True:
            target, rank = self._wait_for_target()
            try:
                self._form(target, rank)
                break
            except RuntimeError as error:
                if not group.is_loss(error):
                    raise
                self._job.release()
                group.abandon_group(error)
        if before:
            resized = Resized(target.gen, self._job.rank, self._job.ranks, before)
            for callback in tuple(_callbacks):
                callback(resized)

    def _wait_for_target(self) -> tuple[Target, int]:
        membership = self._member
        while True:
            target = membership.look()
            wanted = target is not None and target.gen > membership.gen
            if self._stop.wanted or (wanted and target and membership.is_excluded_by(target)):
                self._leave(save=self._trains and not self._others_go_on(target))
            if wanted and target and (rank := membership.rank_in(target)) is not None:
                return target, rank
            time.sleep(_WAIT_S)

    def _form(self, target: Target, rank: int) -> None:
        job, membership = self._job, self._member
        membership.gen = target.gen
        membership.forget_speed()
        ranks = len(target.ranks)
        updates = [job.update if self._trains else -1]
        if ranks > 1:
            card = json.dumps(updates[0])

            def give_up() -> bool:
                newest = membership.look()
                return self._stop.wanted or (newest is not None and newest.gen > target.gen)

            meeting = group.meet(target.store, rank, ranks, card, give_up)
            group.form_group(meeting, cuda=self._cuda)
            updates = [json.loads(other) for other in meeting.cards]
        if max(updates) < 0 and rank == 0:
            self._restore()
        if min(updates) != max(updates) or (max(updates) < 0 and ranks > 1):
            self._share(updates.index(max(updates)), rank)
        job.replan(rank, ranks)
        runai.elastic.generation = target.gen
        self._names = target.ranks
        self._settle()
        membership.tell(WorkerPhase.RUNNING, job.update)

    def _settle(self) -> None:
        self._agreement = group.Agreement(self._job.ranks)
        self._trains = True
        self._keep_buffers()

    def _share(self, source: int, rank: int | None = None) -> None:
        mine = (self._job.rank if rank is None else rank) == source
        state = share_state(self._job.state_dict() if mine else None, source)
        if not mine:
            self._job.load_state_dict(state)

    def _leave(self, *, save: bool) -> NoReturn:
        """Go, with a checkpoint where nobody stays who has the state.

        Raises:
            SystemExit: always, with the code of who leaves before the end.
        """
        if self._membership is not None:
            self._membership.tell(WorkerPhase.DRAINING, self._job.update)
        if self._saver is not None:
            if save:
                self._saver.save(self._job.state_dict(), self._job.update)
            self._saver.wait()
        elif save:
            warnings.warn(
                f"The {self._job.update} updates until this pause are lost without a checkpoint: "
                "give elastic.Job a directory (checkpoint=), or set RUNAI_CHECKPOINT_DIR.",
                stacklevel=2,
            )
        if self._membership is not None:
            self._membership.tell(WorkerPhase.LEFT, self._job.update)
        raise SystemExit(LEAVE_EXIT_CODE)

    # ---- small things

    @property
    def _member(self) -> Membership:
        assert self._membership is not None
        return self._membership

    @property
    def _cuda(self) -> bool:
        return next((p.is_cuda for p in self._job.module.parameters()), False)

    def _target_of(self, gen: int) -> Target:
        while (target := self._member.look()) is None or target.gen < gen:
            time.sleep(_WAIT_S)  # another rank saw it: a file system may be slow to show it here
        return target

    def _others_go_on(self, target: Target | None) -> bool:
        """Say whether a peer of the last generation is in the newest: it has the state."""
        if target is None or target.gen <= self._member.gen or target.reason is Reason.PAUSE:
            return False
        me = _last(self._member.worker)
        peers = {_last(name) for name in self._names} - {me}
        return bool(peers & {_last(name) for name in target.ranks})

    def _restore(self) -> None:
        if self._saver is not None and (found := load(self._saver.directory)) is not None:
            self._job.load_state_dict(found[1])

    def _keep_buffers(self) -> None:
        if self._job.ranks > 1:
            self._buffers = [buffer.detach().clone() for buffer in self._job.module.buffers()]

    def _checkpoint_if_due(self) -> None:
        if self._saver is None or self._job.rank != 0:
            return
        if self._every is not None:
            due = self._job.update % self._every == 0
        else:
            due = time.monotonic() - self._saved_at >= _CHECKPOINT_EVERY_S
        if due:
            self._saver.start(self._job.state_dict(), self._job.update)
            self._saved_at = time.monotonic()


def attach(job: Trained, checkpoint: str | os.PathLike[str] | None, every: int | None) -> Resizing:
    """Have a job resized, checkpointed and paused as its environment says, and begin.

    Args:
        job: as the script built it.
        checkpoint: directory; None: `RUNAI_CHECKPOINT_DIR`, where it is set.
        every: updates between checkpoints; None: ten minutes.
    """
    directory = checkpoint or os.environ.get("RUNAI_CHECKPOINT_DIR")
    resizing = Resizing(
        job,
        checkpoint=Path(directory) if directory else None,
        every=every,
        membership=Membership.from_environment(),
    )
    job.on_failure = resizing.recover
    resizing.join()
    return resizing


_watching: list[tuple[Membership | None, Stop]] = []


def should_stop() -> bool:
    """Say whether this worker was told to go, for training loops without a `Job`.

    It is this worker's own view: ranks that must stop together have to agree on it. The first call
    takes SIGTERM.
    """
    if not _watching:
        stop = Stop()
        stop.listen()
        _watching.append((Membership.from_environment(), stop))
    membership, stop = _watching[0]
    target = membership.look() if membership is not None else None
    if membership is not None and target is not None and membership.gen == 0:
        membership.gen = target.gen if membership.rank_in(target) is not None else 0
    excluded = membership is not None and target is not None and membership.is_excluded_by(target)
    return stop.wanted or excluded


def _last(name: str) -> str:
    return name.rpartition("/")[2]
