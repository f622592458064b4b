"""`init` for Keras: device set-up for each back end, division of the global batch."""

from __future__ import annotations

import os

import keras

import runai.elastic


def init(global_batch_size: int, max_gpu_batch_size: int, gpus: int | None = None) -> None:
    """Divide the global batch among the GPUs, and set the attributes of `runai.elastic`.

    Call it before creating the model: with several GPUs, JAX gets a Keras `DataParallel` and
    TensorFlow a `MirroredStrategy` (unless the script has set one), PyTorch joins the processes of
    a launcher, one for each GPU.

    Args:
        global_batch_size: samples of one update of the weights, over all GPUs.
        max_gpu_batch_size: the most samples of one GPU's micro-batch.
        gpus: GPUs over all processes; None: all available ones, 1 without any.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is below 1, or there are fewer GPUs than `gpus` (PyTorch: processes).
    """
    if gpus is not None and gpus < 1:
        raise ValueError(f"gpus must be at least 1, not {gpus}.")
    starts = {"jax": _start_jax, "tensorflow": _start_tensorflow, "torch": _start_torch}
    rank, ranks, devices = starts[keras.backend.backend()](gpus)
    runai.elastic.publish(
        global_batch_size, max_gpu_batch_size, ranks=ranks, rank=rank, devices=devices
    )


def _start_jax(gpus: int | None) -> tuple[int, int, int]:
    """Distribute over the devices; return rank, ranks and devices of a process."""
    import jax  # noqa: PLC0415  # only one back end is there

    if jax.process_count() > 1:
        raise ValueError(
            f"There are {jax.process_count()} JAX processes; elastic training uses one, which "
            "drives the GPUs of its machine."
        )
    if (distribution := keras.distribution.distribution()) is None:
        _expect_single_worker("JAX")
        devices = keras.distribution.list_devices()
        count = gpus or (1 if jax.default_backend() == "cpu" else len(devices))
        _check_available(count, len(devices), "devices")
        if count > 1:
            keras.distribution.set_distribution(
                keras.distribution.DataParallel(devices=devices[:count])
            )
        return 0, 1, count
    mesh = distribution.device_mesh
    return 0, 1, int(mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)])


def _start_tensorflow(gpus: int | None) -> tuple[int, int, int]:
    """Set a strategy for the devices; return rank, ranks and devices of a process."""
    import tensorflow as tf  # noqa: PLC0415  # only one back end is there

    if not tf.distribute.has_strategy():
        _expect_single_worker("TensorFlow")
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        count = gpus or max(1, len(tf.config.list_logical_devices("GPU")))
        _check_available(count, len(devices), "devices")
        if count > 1:
            names = [device.name for device in devices[:count]]
            tf.distribute.experimental_set_strategy(tf.distribute.MirroredStrategy(names))
        return 0, 1, count
    return 0, 1, int(tf.distribute.get_strategy().num_replicas_in_sync)


def _start_torch(gpus: int | None) -> tuple[int, int, int]:
    """Join the other processes; return rank, ranks and devices of a process."""
    from runai.elastic.keras.ranks import join  # noqa: PLC0415  # only one back end is there

    rank, ranks = join()
    _check_available(
        gpus or ranks, ranks, "processes: start one for each GPU (runai.elastic.run, torchrun)"
    )
    return rank, ranks, 1


def _expect_single_worker(backend: str) -> None:
    """Raise ValueError in one of several workers: each would train alone."""
    ranks = os.environ.get("WORLD_SIZE")
    # The first worker of an elastic job may start alone.
    is_elastic = "RUNAI_ELASTIC_DIR" in os.environ and "RUNAI_LAUNCHER_PID" not in os.environ
    if ranks and (int(ranks) > 1 or is_elastic):
        raise ValueError(
            f"Keras with {backend} trains in one process that drives all GPUs, and this job has "
            "several workers: submit it with --gpus N instead of --workers N, or use the PyTorch "
            "back end (KERAS_BACKEND=torch)."
        )


def _check_available(requested: int, available: int, what: str) -> None:
    if requested > available:
        raise ValueError(f"gpus={requested}, but there is only {available} of the needed {what}.")
