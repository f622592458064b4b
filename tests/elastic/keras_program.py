"""Run the checks of elastic training with Keras on one back end, in a separate process.

`python keras_program.py RESULTS MODULE.CHECK…` runs these functions and writes their errors
("" for success) as JSON. A separate process, since it can have one back end only; one for all
checks, since importing a back end takes seconds.
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
    # PyTorch and JAX would import TensorFlow, which takes longer than most of the checks.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
# Compiling takes most of the time, so all checks share a cache of compiled code.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(sys.argv[1]).with_suffix(".cache")))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
if os.environ["KERAS_BACKEND"] == "jax" and version("jax").startswith("0.10."):
    # XLA aborts the process on an unknown flag.
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
    """Split the processor into two devices; one is used unless a check requests both."""
    import jax

    jax.config.update("jax_num_cpu_devices", 2)


def _tensorflow() -> None:
    """Do the same, and disable graph rewriting, which takes longer than running the graphs."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    processor = tf.config.list_physical_devices("CPU")[0]
    half = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(processor, [half, half])


if __name__ == "__main__":
    main(*sys.argv[1:])
