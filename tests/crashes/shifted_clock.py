"""A Python interpreter with a settable clock, shared by every Python that it starts.

The machine's own clock must stay: other programs depend on it. `shifted_clock.c` is loaded into
each process instead, by an interpreter in place of ours (`ShiftedClock.python`): hub, service,
agent, supervisors and jobs start each other by `sys.executable`, so all see one clock.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("shifted_clock.c")
INTERPRETER = r"""
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    (void)count;
    setenv("LD_PRELOAD", LIBRARY, 1);
    words[0] = OURSELVES; /* what sys.executable is to be */
    execv(PYTHON, words);
    return 127;
}
"""


class ShiftedClock:
    """One settable clock, and a Python environment that runs by it."""

    def __init__(self, folder: Path) -> None:
        """Build both in a new folder; needs a C compiler."""
        (folder / "bin").mkdir(parents=True)
        library, offset = folder / "shifted_clock.so", folder / "offset"
        offset.write_bytes(struct.pack("q", 0))
        self._file = offset.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 8)
        self.python = folder / "bin/python"
        """Replacement for `sys.executable`, with all installed packages."""
        configured = Path(sys.prefix, "pyvenv.cfg")
        if configured.exists():
            shutil.copy(configured, folder)
        for installed in ("lib", "share", "etc"):  # the hub's pages are below share
            if (place := Path(sys.prefix, installed)).exists():
                (folder / installed).symlink_to(place)
        _compile(library, "-shared", "-fPIC", str(SOURCE), OFFSET_FILE=offset)
        wrapper = folder / "python.c"
        wrapper.write_text(INTERPRETER)
        real = Path(sys.executable).resolve()
        _compile(self.python, str(wrapper), LIBRARY=library, OURSELVES=self.python, PYTHON=real)

    def set(self, seconds: int) -> None:
        """Set the seconds ahead of the machine's clock, at once and in every process."""
        self._map[:8] = struct.pack("q", seconds)

    def close(self) -> None:
        """Close the offset file; processes that run by the clock go on."""
        self._map.close()
        self._file.close()


def _compile(target: Path, *what: str, **names: Path) -> None:
    defined = [f'-D{name}="{path}"' for name, path in names.items()]
    command = ["cc", "-O1", "-Wall", "-Werror", *defined, *what, "-o", str(target), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
