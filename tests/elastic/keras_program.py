"""Run the checks of elastic training with Keras on one back end, in a process of its own.

`python keras_program.py RESULTS MODULE.CHECK…` runs these functions and writes what went wrong
(nothing: "") as JSON. Started by test_keras.py, as importing a back end takes seconds and a process
has one of them only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if os.environ["KERAS_BACKEND"] != "tensorflow":
    # PyTorch and JAX look for it, which takes longer than most of the checks.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
# Compiling is most of the time. What was compiled for one check is taken for all.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(sys.argv[1]).with_suffix(".cache")))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
if os.environ["KERAS_BACKEND"] == "jax" and version("jax").startswith("0.10."):
    # One that XLA does not know ends the process.
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
        " --xla_cpu_parallel_codegen_split_count=1",
    )


def main(results: str, *checks: str) -> None:
    """Run the checks and write their outcomes."""
    prepare = {"jax": _jax, "tensorflow": _tensorflow, "torch": lambda: None}
    prepare[os.environ["KERAS_BACKEND"]]()
    outcomes: dict[str, str] = {}
    for check in checks:
        module, _, name = check.partition(".")
        try:
            getattr(importlib.import_module(module), name)()
            outcomes[check] = ""
        except Exception:  # noqa: BLE001  # each check has its own outcome
            outcomes[check] = traceback.format_exc()
    Path(results).write_text(json.dumps(outcomes), encoding="utf-8")


def _jax() -> None:
    """Make two devices out of the processor; one is used unless a check asks for both."""
    import jax

    jax.config.update("jax_num_cpu_devices", 2)


def _tensorflow() -> None:
    """Do the same, and leave out rewriting graphs, which takes longer than running them."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    processor = tf.config.list_physical_devices("CPU")[0]
    half = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(processor, [half, half])


if __name__ == "__main__":
    main(*sys.argv[1:])
