"""NVIDIA's library without a GPU: the devices that a file lists, compiled from `agent/*.c`."""

from __future__ import annotations

import subprocess
from pathlib import Path

IDLE_GPUS = tuple(
    f"gpu GPU-1d1e0000-0000-0000-0000-00000000000{n} 81920 600 600 0 H100" for n in range(3)
)


def compiled_driver(folder: Path, state: Path | None = None, source: str = "fake_nvml.c") -> Path:
    """Return the library in a folder; `state`: its file, for processes without the variable."""
    library = folder / "libnvidia-ml.so.1"
    options = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    options += [] if state is None else [f'-DSTATE="{state}"']
    program = Path(__file__).parent / "agent" / source
    subprocess.run(["cc", *options, "-o", library, program], check=True)
    return library


def idle_devices(folder: Path) -> Path:
    """Return a folder for LD_LIBRARY_PATH, with devices that no program uses."""
    state = folder / "state"
    state.write_text("\n".join(IDLE_GPUS) + "\n")
    compiled_driver(folder, state)
    return folder
