"""How many GPUs this process may use, without a framework and without touching one.

Knows `CUDA_VISIBLE_DEVICES`, which wins, and `nvidia-smi`. Exported under the original library's
name; `runai.elastic.torch.init` asks PyTorch instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess


def available() -> bool:
    """Whether there is a GPU."""
    return count() > 0


def count() -> int:
    """Count the GPUs that are visible; 0 where there is no driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # CUDA stops at the first name that is none.
        return next((i for i, name in enumerate(names) if name in {"", "-1", "void"}), len(names))
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    listed = subprocess.run(  # noqa: S603 - found on the user's own PATH
        [program, "--list-gpus"], capture_output=True, text=True, check=False
    )
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
