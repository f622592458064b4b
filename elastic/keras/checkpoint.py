"""`Checkpoint`: a callback of `fit` that saves, pauses and resumes a Keras training.

A checkpoint contains variables by kind, the position, and the fixed settings; it can be resumed at
any number of GPUs. No live resize: processes of JAX and TensorFlow cannot change their devices.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import keras
import numpy as np

import runai.elastic
from runai.elastic import checkpoint
from runai.elastic.keras.training import training_of
from runai.elastic.membership import LEAVE_EXIT_CODE, Membership, StopRequest

if TYPE_CHECKING:
    from runai.elastic.keras.generations import Generation

_FIXED_SETTINGS = ("global_batch_size", "seed", "updates_per_epoch")


class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Callback that restores at the start of `fit`, and saves each epoch and before stops.

    After SIGTERM (a pause, a reclaimed GPU) it finishes the update, writes a checkpoint, and exits
    with status 143: the training is paused, not finished. A restart with any number of GPUs resumes
    at the next update, also within an epoch. Arrays and PyDatasets resume exactly; other data is
    read again up to that update, and skipped.

    Args:
        directory: of the checkpoints; None: `RUNAI_CHECKPOINT_DIR`, which the platform sets.
        every: updates between two checkpoints within an epoch; None: none within an epoch.
        keep: number of checkpoints that remain.

    Raises:
        ValueError: no directory is set; in `fit`: the checkpoint is of another training.
        TypeError: in `fit`, the model is not elastic.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        every: int | None = None,
        keep: int = 2,
    ) -> None:
        super().__init__()
        chosen = directory or os.environ.get("RUNAI_CHECKPOINT_DIR")
        if not chosen:
            raise ValueError(
                "Where checkpoints belong is not known: give Checkpoint a directory, "
                "or set RUNAI_CHECKPOINT_DIR."
            )
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1 update, not {every}.")
        self._directory = Path(chosen)
        self._every = every
        self._keep = keep
        self._stop = StopRequest()
        self._membership: Membership | None = None
        self._saved_metrics: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Install signal handlers, and restore the newest complete checkpoint, if any."""
        training_of(self.model)
        if (generation := _current_generation()) is not None:
            self._stop, self._membership = generation.stop, generation.membership
        else:
            self._membership = Membership.from_environment()
            if (
                self._membership is not None
                and (target := self._membership.read_target()) is not None
            ):
                self._membership.gen = target.gen
        self._stop.listen()
        if (found := checkpoint.load(self._directory, _read_arrays)) is not None:
            self._restore(*found[1])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Restore the metrics of a resumed epoch."""
        self.model._initial_epoch = None  # noqa: SLF001  # for this fit only
        if training_of(self.model).done:
            _assign("metrics", self.model.metrics_variables, self._saved_metrics)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Save or leave if due; a batch of Keras is an update here."""
        training = training_of(self.model)
        if training.passed_over:
            return
        gen, must_leave = self._agree_on_stop()
        updates = training.epoch * training.source.per_epoch + training.done
        if self._membership is not None:
            samples = updates * runai.elastic.global_batch_size
            self._membership.progress(
                updates,
                samples,
                runai.elastic.gpus,
                global_batch=runai.elastic.global_batch_size,
                steps=runai.elastic.steps,
            )
        if must_leave or (self._every is not None and updates % self._every == 0):
            self._save(training.epoch, training.done)
        if must_leave and (generation := _current_generation()) is not None:
            generation.restart(gen)
        if must_leave:
            raise SystemExit(LEAVE_EXIT_CODE)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Save a checkpoint."""
        self._save(epoch + 1, 0)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Restore the signal handlers."""
        self._stop.close()

    def _agree_on_stop(self) -> tuple[int, bool]:
        """Return the newest generation that any rank has read, and True if all must stop."""
        target = self._membership.read_target() if self._membership is not None else None
        if keras.backend.backend() != "torch":
            excluded = self._membership is not None and (
                target is not None and self._membership.is_excluded_by(target)
            )
            return 0, self._stop.is_requested or excluded
        from runai.elastic.keras.ranks import agree  # noqa: PLC0415  # imports torch

        current_gen = self._membership.gen if self._membership is not None else 0
        gen, must_leave = agree(
            target.gen if target is not None else 0, must_leave=self._stop.is_requested
        )
        return gen, must_leave or gen > current_gen

    def _save(self, epoch: int, done: int) -> None:
        """Write a checkpoint of this position, on rank 0 only."""
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        if not runai.elastic.master:
            return
        training = training_of(self.model)
        about = {"epoch": epoch, "done": done, **self._fixed_settings()}
        arrays = {
            f"{kind}/{index}": _array(variable)
            for kind, variables in self._variables().items()
            for index, variable in enumerate(variables)
        }
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)

        def write(file: BinaryIO) -> None:
            np.savez(file, **arrays)

        updates = epoch * training.source.per_epoch + done
        checkpoint.save(self._directory, updates, write, keep=self._keep)

    def _restore(self, about: dict[str, Any], arrays: dict[str, list[Any]]) -> None:
        """Restore all variables but the metrics, and the position of the training."""
        for name, now in self._fixed_settings().items():
            if about[name] != now:
                raise ValueError(
                    f"The checkpoints in {self._directory} are of a training with {name} "
                    f"{about[name]}, not {now}: use that again, or another directory."
                )
        for kind, variables in self._variables().items():
            if kind != "metrics":
                _assign(kind, variables, arrays.get(kind, []))
        self._saved_metrics = arrays.get("metrics", [])
        training_of(self.model).resume(about["epoch"], about["done"])
        self.model._initial_epoch = about["epoch"]  # noqa: SLF001  # as BackupAndRestore does

    def _fixed_settings(self) -> dict[str, int]:
        training = training_of(self.model)
        values = (runai.elastic.global_batch_size, training.seed, training.source.per_epoch)
        return dict(zip(_FIXED_SETTINGS, values, strict=True))

    def _variables(self) -> dict[str, Sequence[Any]]:
        return {
            "model": self.model.variables,
            "optimizer": self.model.optimizer.plain.variables,
            "metrics": self.model.metrics_variables,
        }


def _current_generation() -> Generation | None:
    if keras.backend.backend() != "torch":
        return None
    from runai.elastic.keras.generations import current  # noqa: PLC0415  # imports torch

    return current()


def _assign(kind: str, variables: Sequence[Any], arrays: Sequence[Any]) -> None:
    """Assign saved arrays to variables of one kind.

    Raises:
        ValueError: their number or shapes differ.
    """
    shapes = [tuple(variable.shape) for variable in variables]
    if shapes != [array.shape for array in arrays]:
        raise ValueError(
            f"The checkpoint has {len(arrays)} arrays for the {kind}, which now has {len(shapes)}, "
            "or of other shapes: it is of another model or optimizer. Use another directory."
        )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def _array(variable: Any) -> Any:
    value = keras.ops.convert_to_numpy(variable)
    return value if value.dtype.isbuiltin else value.astype("float32")  # bfloat16, exactly


def _read_arrays(file: BinaryIO) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    kinds: dict[str, list[Any]] = {}
    with np.load(file, allow_pickle=False) as archive:
        about = json.loads(archive["about"].tobytes())
        for name in archive.files:  # in the order of writing
            kind, _, index = name.partition("/")
            if index:
                kinds.setdefault(kind, []).append(archive[name])
    return about, kinds
