"""Checkpoints of PyTorch states: `save` and `load`; `Saver` writes in the background.

Loading runs no code (`weights_only`); `runai.elastic.checkpoint` makes the files atomic.
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
    """Write a state atomically as an update's checkpoint; delete all but the last `keep`.

    Args:
        directory: of a job's checkpoints; created if missing.
        state: tensors, numbers, strings, dicts and lists, as `weights_only` allows.
        update: updates of the weights so far.
        keep: number of checkpoints that remain, including this one.

    Raises:
        OSError: if it cannot be written; earlier ones remain.
    """
    return checkpoint.save(directory, update, partial(torch.save, state), keep=keep)


def load(
    directory: str | os.PathLike[str], *, map_location: str | torch.device = "cpu"
) -> tuple[int, Any] | None:
    """Load update and state of the newest complete checkpoint; None without one.

    Raises:
        CheckpointError: if checkpoints exist and none can be read as data.
    """

    def read(file: BinaryIO) -> object:
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise CheckpointError(f"{getattr(file, 'name', file)}: {error}") from error

    return checkpoint.load(directory, read)


class Saver:
    """A background writer of checkpoints: training waits for the tensors' copy only."""

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 2) -> None:
        """Set the directory; nothing is written yet."""
        self.directory, self._keep = Path(directory), keep
        self._thread: threading.Thread | None = None

    def start(self, state: object, update: int) -> None:
        """Copy a state and write it in a thread, after the previous write has finished.

        A failure is a warning: the previous checkpoint remains, and training continues.
        """
        self.wait()
        copied = map_tensors(lambda tensor: tensor.detach().to("cpu", copy=True), state)
        # No daemon: the end of a script waits for its last checkpoint.
        self._thread = threading.Thread(
            target=self._write, args=(copied, update), name="runai-checkpoint"
        )
        self._thread.start()

    def save(self, state: object, update: int) -> Path:
        """Write a state to disk, and return its path.

        Raises:
            OSError: if it cannot be written.
        """
        self.wait()
        return save(self.directory, state, update, keep=self._keep)

    def wait(self) -> None:
        """Wait for a running write."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, state: object, update: int) -> None:
        try:
            save(self.directory, state, update, keep=self._keep)
        except OSError as error:
            warnings.warn(f"No checkpoint of update {update}: {error}", stacklevel=1)


def map_tensors(change: Callable[[torch.Tensor], object], state: object) -> Any:  # noqa: ANN401 - of the state's shape
    """Copy a state's dicts, lists and tuples, and apply `change` to each tensor in order."""
    if isinstance(state, torch.Tensor):
        return change(state)
    if isinstance(state, dict):
        return {key: map_tensors(change, value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map_tensors(change, value) for value in state)
    return state
