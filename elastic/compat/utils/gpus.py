"""The number of GPUs of this process, without a framework or a CUDA context.

`CUDA_VISIBLE_DEVICES` wins over `nvidia-smi`. `runai.elastic.torch.init` uses PyTorch's count
instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess


def available() -> bool:
    """Return True if a GPU is visible."""
    return count() > 0


def count() -> int:
    """Return the number of visible GPUs; 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # CUDA stops at the first invalid name.
        return next((i for i, name in enumerate(names) if name in {"", "-1", "void"}), len(names))
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    listed = subprocess.run(  # noqa: S603 - found on the user's own PATH
        [program, "--list-gpus"], capture_output=True, text=True, check=False
    )
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
