"""Classify scikit-learn's handwritten digits with Keras 3, elastically, on any of its back ends.

Run it: `KERAS_BACKEND=jax python elastic_keras_digits.py` (or torch, tensorflow). `kill` it and run
it again: it continues from its checkpoint, on the GPUs available then.
The lines marked `elastic` are the only changes to a plain Keras script.
"""

import os

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import runai.elastic.keras  # elastic

runai.elastic.keras.init(256, 64)  # elastic: 256 samples an update, at most 64 on a GPU at a time

images, labels = load_digits(return_X_y=True)
images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
x, x_test, y, y_test = train_test_split(images, labels, test_size=0.2, random_state=0)

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu", padding="same"),
        keras.layers.GroupNormalization(4),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, activation="relu", padding="same"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model = runai.elastic.keras.models.Model(model)  # elastic
schedule = keras.optimizers.schedules.CosineDecay(0.01, 60)  # counts updates
model.compile(
    optimizer=keras.optimizers.AdamW(schedule),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
saving = runai.elastic.keras.Checkpoint(os.environ.get("RUNAI_CHECKPOINT_DIR", "digits"))  # elastic
model.fit(x, y, epochs=10, validation_data=(x_test, y_test), callbacks=[saving], verbose=2)

loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"{keras.backend.backend()}: accuracy {accuracy:.3f} on {runai.elastic.gpus} GPU(s)")
