"""A training with the load of a typical notebook: a second of work, then a pause for data.

    python train_tensorflow.py --seconds 20

TensorFlow takes the whole of its share of a GPU's memory at its first use of it, unless
TF_FORCE_GPU_ALLOW_GROWTH is "true": then it takes what it needs, when it needs it. Where there is
no GPU the training runs on the CPU, and `take` stands for TensorFlow's allocator, so that a
simulated GPU shows the same.
"""

import argparse
import os
import resource
import time

import tensorflow as tf

WORK_S, WAIT_S = 1.0, 1.5
MIB = 1 << 20


def take() -> bytearray:
    """Allocate the whole memory share, as TensorFlow's allocator does on a GPU."""
    if os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") == "true":
        return bytearray()
    share_mib = int(os.environ.get("RUNAI_GPU_MEMORY_LIMIT_MIB", "1024"))
    in_use_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    allocated = bytearray(max(0, share_mib - in_use_mib) * MIB)
    for page in range(0, len(allocated), 4096):  # untouched pages are not resident
        allocated[page] = 1
    return allocated


def main() -> None:
    """Alternate work and pauses until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    seconds = parser.parse_args().seconds

    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    allocated = None if has_gpu else take()
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(256, activation="relu"), tf.keras.layers.Dense(10)]
    )
    model.compile(
        optimizer="adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    images = tf.random.stateless_normal((512, 784), seed=(1, 2))
    labels = tf.random.stateless_uniform((512,), seed=(3, 4), maxval=10, dtype=tf.int32)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        busy_until = time.monotonic() + WORK_S
        while time.monotonic() < busy_until:
            loss = model.train_on_batch(images, labels)
        print(f"loss {float(loss):.4f}", flush=True)
        time.sleep(WAIT_S)
    del allocated


if __name__ == "__main__":
    main()
