"""A driver for a whole platform without a GPU: its devices seem real, and no program uses them."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "agent" / "fake_nvml.c"
IDLE_GPUS = tuple(
    f"gpu GPU-1d1e0000-0000-0000-0000-00000000000{n} 81920 600 600 0 H100" for n in range(3)
)


def fake_driver(folder: Path, *gpus: str) -> Path:
    """Compile NVIDIA's library with these devices into a folder, for LD_LIBRARY_PATH."""
    state, library = folder / "state", folder / "libnvidia-ml.so.1"
    state.write_text("\n".join(gpus or IDLE_GPUS) + "\n")
    define = f'-DSTATE="{state}"'  # the agent's process does not inherit the environment
    subprocess.run(["cc", "-shared", "-fPIC", define, "-o", library, SOURCE], check=True)
    return folder
