"""Two processes of the PyTorch back end, as torchrun starts them, but forked to save imports."""

from __future__ import annotations

import multiprocessing
import os

import keras
import torch

import runai.elastic.keras
from keras_models import FEATURES, LABELS, compile_options, network, weight_distance
from ports import free_port


def _train(rank: int, port: int) -> None:
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(group, RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    native = network()
    native.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), **compile_options())
    native.fit(FEATURES[:97], LABELS[:97], batch_size=48, epochs=2, shuffle=False, verbose=0)

    runai.elastic.keras.init(48, 12)
    # Ranks begin with different weights, and the last update has one sample for two ranks.
    model = runai.elastic.keras.models.Model(network(seed=1 + rank))
    model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), **compile_options())
    model.fit(FEATURES[:97], LABELS[:97], epochs=2, shuffle=False, verbose=0)

    assert runai.elastic.gpus == 2
    assert weight_distance(model, native) < 1e-6


def check_two_processes_train_like_a_single_process() -> None:
    port = free_port()
    forked = multiprocessing.get_context("fork")
    ranks = [forked.Process(target=_train, args=(rank, port)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(300)

    assert [process.exitcode for process in ranks] == [0, 0]
