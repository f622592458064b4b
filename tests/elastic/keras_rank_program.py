"""One of two processes that train with Keras's PyTorch back end; started by test_keras.py."""

from __future__ import annotations

import os

import keras
import torch

import runai.elastic.keras
from keras_models import LABELS, X, apart, classify, network

torch.set_num_threads(1)
native = network()
native.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), **classify())
native.fit(X[:97], LABELS[:97], batch_size=48, epochs=2, shuffle=False, verbose=0)

runai.elastic.keras.init(48, 12)
# Ranks begin with other weights, and the last update has one sample for two of them.
model = runai.elastic.keras.models.Model(network(seed=1 + int(os.environ["RANK"])))
model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), **classify())
model.fit(X[:97], LABELS[:97], epochs=2, shuffle=False, verbose=0)

assert runai.elastic.gpus == 2
assert apart(model, native) < 1e-6
