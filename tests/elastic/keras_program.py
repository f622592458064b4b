"""Run the checks of elastic training with Keras on one back end, in a process of its own.

`python keras_program.py RESULTS MODULE…` imports modules of checks, runs each function whose name
begins with `check_`, and writes what went wrong (nothing: "") as JSON. Started by test_keras.py, as
importing a back end takes seconds and a process has one of them only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiling is most of the time


def main(results: str, *modules: str) -> None:
    """Run all checks of the modules and write their outcomes."""
    outcomes: dict[str, str] = {}
    for module in modules:
        for name, check in vars(importlib.import_module(module)).items():
            if not name.startswith("check_"):
                continue
            try:
                check()
                outcomes[name] = ""
            except Exception:  # noqa: BLE001  # each check has its own outcome
                outcomes[name] = traceback.format_exc()
    Path(results).write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
