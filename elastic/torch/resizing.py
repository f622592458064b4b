"""Resizing of a running job between two updates, and recovery from a lost peer.

A resize leaves the process group, forms the next one, and continues from the most advanced rank's
state. Checkpoints and pauses are handled here, too.
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
from runai.elastic.membership import LEAVE_EXIT_CODE, Membership, StopRequest
from runai.elastic.torch import group
from runai.elastic.torch.checkpoint import Saver, load
from runai.elastic.torch.sharing import share_state
from runai.hub_service.wire.elastic_messages import Reason, Target, WorkerPhase

_WAIT_S = 0.01
_CHECKPOINT_EVERY_S = 600.0


@dataclass(frozen=True, slots=True)
class Resized:
    """The argument of `on_resize` callbacks."""

    generation: int
    rank: int
    ranks: int
    before: int
    """Previous number of ranks."""


_callbacks: list[Callable[[Resized], object]] = []


def on_resize(callback: Callable[[Resized], object]) -> Callable[[Resized], object]:
    """Register a function that each rank calls after a resize, before the next update."""
    _callbacks.append(callback)
    return callback


class ResizableJob(Protocol):
    """The interface of a resizable job, such as `runai.elastic.torch.Job`."""

    module: nn.Module
    rank: int
    ranks: int
    global_batch: int
    read: tuple[int, ...]
    on_failure: Callable[[Exception], bool] | None

    @property
    def update(self) -> int:
        """Number of completed updates."""

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of the training."""

    def load_state_dict(self, saved: Any) -> None:  # noqa: ANN401 - a state
        """Restore a state."""

    def release(self) -> None:
        """Drop all references to the process group."""

    def replan(self, rank: int, ranks: int) -> None:
        """Continue in the current process group."""


class Resizing:
    """The resizing of one job: follows its cluster's generations, and saves checkpoints."""

    def __init__(
        self,
        job: ResizableJob,
        *,
        checkpoint: Path | None = None,
        every: int | None = None,
        membership: Membership | None = None,
        stop: StopRequest | None = None,
    ) -> None:
        """Store the job; `join` starts.

        Args:
            job: as built by the script.
            checkpoint: directory; None: no checkpoints.
            every: updates between checkpoints; None: ten minutes.
            membership: in the job's cluster; None: a fixed size, though SIGTERM pauses.
            stop: this worker's stop request.
        """
        self._job, self._membership, self._stop = job, membership, stop or StopRequest()
        self._saver = Saver(checkpoint) if checkpoint else None
        self._every = every
        self._saved_at = time.monotonic()
        self._agreement = group.Agreement(1)
        self._is_training = False
        self._rank_names: Sequence[str] = ()
        self._saved_buffers: list[Tensor] = []

    def join(self) -> None:
        """Wait for a target, and start from the peers' state or the newest checkpoint."""
        self._stop.listen()
        if self._membership is not None:
            self._membership.report(WorkerPhase.READY)
            self._enter()
            return
        self._restore()
        if self._job.ranks > 1:
            self._share(0)
        self._start_agreement()

    def after_update(self) -> None:
        """Switch to a newer generation or leave if requested; else checkpoint and report."""
        membership = self._membership
        gen = 0
        if membership is not None and (target := membership.read_target()) is not None:
            gen = target.gen
        self._save_buffers()
        current_gen = membership.gen if membership else 0
        try:
            newest_gen, departing = self._agreement.exchange(
                self._job.rank, gen, must_leave=self._stop.is_requested, read=self._job.read
            )
            if newest_gen > current_gen or departing:
                if self._job.ranks > 1:
                    # The exchange posted meanwhile is newer, and its result equal on all ranks.
                    newest_gen, departing = self._agreement.conclude()
                self._switch(newest_gen, departing)
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
        """Reset the agreement: a hook of the script formed another process group."""
        self._agreement = group.Agreement(self._job.ranks)

    def recover(self, error: Exception) -> bool:
        """Recover from an error within an update; return True if a new group was formed."""
        if self._job.ranks == 1 or not group.is_peer_loss(error):
            return False
        with contextlib.suppress(group.GroupLost):
            self._agreement.conclude()  # raises the cause if a peer with less data has left
        if self._membership is None:
            return False
        self._regroup(error)
        return True

    def finish(self) -> None:
        """Save the final state and leave the group; the script continues by itself."""
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
            self._membership.report(WorkerPhase.RUNNING, self._job.update)
        self._stop.close()

    # ---- from one generation to the next

    def _switch(self, gen: int, departing: Sequence[int]) -> None:
        """Leave the group on all ranks after the same update; enter the next or exit."""
        job, membership = self._job, self._membership
        staying = [rank for rank in range(job.ranks) if rank not in departing]
        if membership is None:
            staying = []  # no cluster would form another group
        elif gen > membership.gen:
            target = self._target_of(gen)
            names = {_short_name(name) for name in target.ranks}
            staying = [rank for rank in staying if _short_name(self._rank_names[rank]) in names]
        job.release()
        group.leave_group()
        if job.rank in staying:
            self._enter()
        else:
            self._leave(save=not staying and job.rank == 0)

    def _regroup(self, error: Exception) -> None:
        """Regroup without the lost peer, from the most advanced rank's last update."""
        self._job.release()
        self._agreement = group.Agreement(1)
        group.abandon_group(error)
        # Weights change at the boundary only; restore buffers written by forward passes.
        with torch.no_grad():
            for buffer, saved in zip(self._job.module.buffers(), self._saved_buffers, strict=False):
                buffer.copy_(saved)
        self._enter()

    def _enter(self) -> None:
        """Form the newest generation with this worker; retry until it succeeds."""
        previous_ranks = self._job.ranks if self._is_training else 0
        while True:
            target, rank = self._wait_for_target()
            try:
                self._form(target, rank)
                break
            except RuntimeError as error:
                if not group.is_peer_loss(error):
                    raise
                self._job.release()
                group.abandon_group(error)
        if previous_ranks:
            resized = Resized(target.gen, self._job.rank, self._job.ranks, previous_ranks)
            for callback in tuple(_callbacks):
                callback(resized)

    def _wait_for_target(self) -> tuple[Target, int]:
        """Wait for a newer target with this worker; exit if it must leave."""
        membership = self._member
        while True:
            target = membership.read_target()
            is_newer = target is not None and target.gen > membership.gen
            if self._stop.is_requested or (
                is_newer and target and membership.is_excluded_by(target)
            ):
                self._leave(save=self._is_training and not self._peers_continue(target))
            if is_newer and target and (rank := membership.rank_in(target)) is not None:
                return target, rank
            time.sleep(_WAIT_S)

    def _form(self, target: Target, rank: int) -> None:
        """Form a generation's group, take over the newest state, and plan anew."""
        job, membership = self._job, self._member
        membership.gen = target.gen
        membership.forget_speed()
        ranks = len(target.ranks)
        updates = [job.update if self._is_training else -1]
        if ranks > 1:
            card = json.dumps(updates[0])

            def is_outdated() -> bool:
                newest = membership.read_target()
                return self._stop.is_requested or (newest is not None and newest.gen > target.gen)

            meeting = group.meet(target.store, rank, ranks, card, is_outdated)
            group.form_group(meeting, cuda=self._uses_cuda)
            updates = [json.loads(other) for other in meeting.cards]
        if max(updates) < 0 and rank == 0:
            self._restore()
        if min(updates) != max(updates) or (max(updates) < 0 and ranks > 1):
            self._share(updates.index(max(updates)), rank)
        job.replan(rank, ranks)
        runai.elastic.generation = target.gen
        self._rank_names = target.ranks
        self._start_agreement()
        membership.report(WorkerPhase.RUNNING, job.update)

    def _start_agreement(self) -> None:
        """Begin to train in the current group, with a new agreement."""
        self._agreement = group.Agreement(self._job.ranks)
        self._is_training = True
        self._save_buffers()

    def _share(self, source: int, rank: int | None = None) -> None:
        """Load the source rank's state on all other ranks."""
        is_source = (self._job.rank if rank is None else rank) == source
        state = share_state(self._job.state_dict() if is_source else None, source)
        if not is_source:
            self._job.load_state_dict(state)

    def _leave(self, *, save: bool) -> NoReturn:
        """Exit, with a checkpoint if no remaining rank has the state.

        Raises:
            SystemExit: always, with code 143.
        """
        if self._membership is not None:
            self._membership.report(WorkerPhase.DRAINING, self._job.update)
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
            self._membership.report(WorkerPhase.LEFT, self._job.update)
        raise SystemExit(LEAVE_EXIT_CODE)

    # ---- helpers

    @property
    def _member(self) -> Membership:
        assert self._membership is not None
        return self._membership

    @property
    def _uses_cuda(self) -> bool:
        return next((p.is_cuda for p in self._job.module.parameters()), False)

    def _target_of(self, gen: int) -> Target:
        """Wait for the target of a generation, and return it."""
        while (target := self._member.read_target()) is None or target.gen < gen:
            time.sleep(_WAIT_S)  # another rank has read it; this node's file system may lag
        return target

    def _peers_continue(self, target: Target | None) -> bool:
        """Return True if a peer with the last generation's state is in the newest."""
        if target is None or target.gen <= self._member.gen or target.reason is Reason.PAUSE:
            return False
        me = _short_name(self._member.worker)
        peers = {_short_name(name) for name in self._rank_names} - {me}
        return bool(peers & {_short_name(name) for name in target.ranks})

    def _restore(self) -> None:
        """Load the newest checkpoint, if there is one."""
        if self._saver is not None and (loaded := load(self._saver.directory)) is not None:
            self._job.load_state_dict(loaded[1])

    def _save_buffers(self) -> None:
        if self._job.ranks > 1:
            self._saved_buffers = [buffer.detach().clone() for buffer in self._job.module.buffers()]

    def _checkpoint_if_due(self) -> None:
        """Save in the background after the set updates, or each ten minutes; on rank 0."""
        if self._saver is None or self._job.rank != 0:
            return
        if self._every is not None:
            due = self._job.update % self._every == 0
        else:
            due = time.monotonic() - self._saved_at >= _CHECKPOINT_EVERY_S
        if due:
            self._saver.start(self._job.state_dict(), self._job.update)
            self._saved_at = time.monotonic()


def attach(
    job: ResizableJob, checkpoint: str | os.PathLike[str] | None, every: int | None
) -> Resizing:
    """Attach resizing, checkpoints and pauses to a job, as its environment sets them; join.

    Args:
        job: as built by the script.
        checkpoint: directory; None: `RUNAI_CHECKPOINT_DIR`, if set.
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


_watching: list[tuple[Membership | None, StopRequest]] = []


def should_stop() -> bool:
    """Return True if this worker must leave, for training loops without a `Job`.

    The result is local: ranks that must stop together have to agree on it. The first call installs
    the SIGTERM handler.
    """
    if not _watching:
        stop = StopRequest()
        stop.listen()
        _watching.append((Membership.from_environment(), stop))
    membership, stop = _watching[0]
    target = membership.read_target() if membership is not None else None
    if membership is not None and target is not None and membership.gen == 0:
        membership.gen = target.gen if membership.rank_in(target) is not None else 0
    excluded = membership is not None and target is not None and membership.is_excluded_by(target)
    return stop.is_requested or excluded


def _short_name(name: str) -> str:
    return name.rpartition("/")[2]
