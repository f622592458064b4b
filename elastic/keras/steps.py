"""Train functions of Keras's back ends that run an update in place of a batch.

`fit` calls the result of `step_of` once per update: Keras's counts of batches (callbacks, progress,
steps_per_epoch) are counts of updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from runai.elastic.keras.training import MicroBatch, Training


def devices_of(model: Any) -> int:
    """Return the number of devices on which this process trains the model."""
    backend = keras.backend.backend()
    if backend == "jax":
        distribution = keras.distribution.distribution()
        if distribution is None:
            return 1
        mesh = distribution.device_mesh
        return int(mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)])
    if backend == "tensorflow":
        return int(model.distribute_strategy.num_replicas_in_sync)
    return 1


def step_of(model: Any, training: Training) -> Callable[..., Any]:
    """Return the train function of an update, from the model's function of a batch."""
    backend = keras.backend.backend()
    if backend == "jax":
        return _jax_step(model, training)
    if backend == "tensorflow":
        return _tensorflow_step(model, training)
    return _torch_step(model, training)


def _torch_step(model: Any, training: Training) -> Callable[..., Any]:
    """Return the train function of an update for the PyTorch back end."""
    from runai.elastic.keras.ranks import rank_and_ranks, sum_over_ranks  # noqa: PLC0415  # torch

    step = model.train_function
    rank, ranks = rank_and_ranks()
    model.optimizer.sum_over_ranks = sum_over_ranks if ranks > 1 else None

    def update(_: Any) -> Any:
        logs: Any = {}
        for piece in training.next_update(1, ranks, rank):
            model.optimizer.begin(piece.weight, last=piece.last)
            logs = step([keras.tree.map_structure(_as_tensor, piece.batch)])
        return logs

    return update


def _as_tensor(leaf: Any) -> Any:
    return None if leaf is None else keras.ops.convert_to_tensor(leaf)


def _jax_step(model: Any, training: Training) -> Callable[..., Any]:
    """Return the train function of an update for the JAX back end."""
    step = model.train_function
    weight_at, last_at = model.optimizer.turn_positions()

    def update(state: Any, _: Any) -> Any:
        logs: Any = {}
        for _ in range(model.steps_per_execution):
            for piece in training.next_update(devices_of(model)):
                trained, non_trainable, optimizer, metrics = state
                optimizer = list(optimizer)
                optimizer[weight_at] = np.float32(piece.weight)
                optimizer[last_at] = np.int32(piece.last)
                state = (trained, non_trainable, optimizer, metrics)
                logs, state = step(state, iter([_distributed_batch(piece)]))
        return logs, state

    return update


def _distributed_batch(piece: MicroBatch) -> Any:
    """Return a piece's batch in the distribution's layout, if the devices share it."""
    distribution = keras.distribution.distribution()
    if distribution is None or not piece.sharded:
        return piece.batch

    def place(leaf: Any) -> Any:
        if leaf is None:
            return None
        return keras.distribution.distribute_tensor(leaf, distribution.get_data_layout(leaf.shape))

    return keras.tree.map_structure(place, piece.batch)


def _tensorflow_step(model: Any, training: Training) -> Callable[..., Any]:
    """Return the train function of an update for the TensorFlow back end."""
    strategy = model.distribute_strategy
    devices = model.optimizer.replicas = devices_of(model)
    step = {True: model.train_function, False: model.train_function}
    if devices > 1:  # two graphs: replicas cannot synchronize inside a condition
        model.__runai__.make_train_function(force=True)
        step[False] = model.train_function

    def update(_: Any) -> Any:
        logs: Any = {}
        for _ in range(model.steps_per_execution):
            for piece in training.next_update(devices):
                model.optimizer.begin(piece.weight, last=piece.last)
                batch = piece.batch if devices == 1 else _by_replica(strategy, piece, devices)
                logs = step[piece.last](_yield_once(batch))
        return logs

    return update


def _yield_once(batch: Any) -> Iterator[Any]:
    yield batch


def _by_replica(strategy: Any, piece: MicroBatch, devices: int) -> Any:
    """Return a piece's batch as one value for each replica."""

    def per_replica(leaf: Any) -> Any:
        if leaf is None:
            return None
        parts = np.split(leaf, devices) if piece.sharded else [leaf] * devices
        return strategy.experimental_distribute_values_from_function(
            lambda context: keras.ops.convert_to_tensor(parts[context.replica_id_in_sync_group])
        )

    return keras.tree.map_structure(per_replica, piece.batch)
