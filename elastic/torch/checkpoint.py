"""Checkpoints of PyTorch states: `save`, `load`, `latest`; `Saver` writes beside the training.

Knows how tensors become bytes and come back without running code (`weights_only`); that files are
whole is `runai.elastic.checkpoint`'s. Called by `resizing` and by training scripts.
"""

from __future__ import annotations

import os
import pickle
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch

from runai.elastic import checkpoint
from runai.elastic.checkpoint import CheckpointError


def save(directory: str | os.PathLike[str], state: object, update: int, *, keep: int = 2) -> Path:
    """Write a state whole, as the checkpoint of an update, and keep the last `keep`.

    Args:
        directory: where a job's checkpoints stand; made if missing.
        state: tensors, numbers, strings, dicts and lists: what `load` reads with `weights_only`.
        update: updates of the weights so far.
        keep: how many checkpoints remain, this one included.

    Raises:
        OSError: if it cannot be written; those before it remain.
    """
    return checkpoint.save(directory, update, partial(torch.save, state), keep=keep)


def load(
    directory: str | os.PathLike[str], *, map_location: str | torch.device = "cpu"
) -> tuple[int, Any] | None:
    """Read the newest whole checkpoint: its update and its state; None where there is none.

    Raises:
        CheckpointError: if none of those that are there can be read, or one holds more than data.
    """

    def read(file: BinaryIO) -> object:
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise CheckpointError(f"{getattr(file, 'name', file)}: {error}") from error

    return checkpoint.load(directory, read)


class Saver:
    """Writes checkpoints beside the training: only the copy of the tensors is waited for."""

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 2) -> None:
        """Name the directory; nothing is written yet."""
        self.directory, self._keep = Path(directory), keep
        self._thread: threading.Thread | None = None

    def start(self, state: object, update: int) -> None:
        """Copy a state now and write it meanwhile; one that is being written is finished first.

        A failure is a warning: the checkpoint before it remains, and training goes on.
        """
        self.wait()
        copied = map_tensors(lambda tensor: tensor.detach().to("cpu", copy=True), state)
        # Not a daemon: a script that ends waits for its last checkpoint.
        self._thread = threading.Thread(
            target=self._write, args=(copied, update), name="runai-checkpoint"
        )
        self._thread.start()

    def save(self, state: object, update: int) -> Path:
        """Write a state and return when it is on the disk.

        Raises:
            OSError: if it cannot be written.
        """
        self.wait()
        return save(self.directory, state, update, keep=self._keep)

    def wait(self) -> None:
        """Return when nothing is being written any more."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, state: object, update: int) -> None:
        try:
            save(self.directory, state, update, keep=self._keep)
        except OSError as error:
            warnings.warn(f"No checkpoint of update {update}: {error}", stacklevel=1)


def map_tensors(change: Callable[[torch.Tensor], object], state: object) -> Any:  # noqa: ANN401 - of the state's shape
    """Copy a state's dicts, lists and tuples, with each tensor changed, in the same order."""
    if isinstance(state, torch.Tensor):
        return change(state)
    if isinstance(state, dict):
        return {key: map_tensors(change, value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map_tensors(change, value) for value in state)
    return state
