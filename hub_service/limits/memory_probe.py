"""Try whether a memory limit holds: allocate more than it allows, from a process of its own.

`python -m runai.hub_service.limits.memory_probe MIB` asks the CUDA driver for that much and one
GiB more, in the environment of a client whose limit is MIB. A limit that is set but not kept, as
happened with MPS across PID namespaces, is worse than none: it is advertised only where this was
refused.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final, Literal

Verdict = Literal["refused", "allowed", "unknown"]
"""What came of the allocation; unknown: the driver said something else, or nothing in time."""

MIB: Final = 1 << 20
BEYOND_MIB: Final = 1024
ANSWERS_WITHIN_S: Final = 30.0

_OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
_EXIT: Final[Mapping[int, Verdict]] = {0: "allowed", 10: "refused"}


def try_limit(limit_mib: int, environment: Mapping[str, str]) -> tuple[Verdict, str]:
    """Start a process with this environment beside our own and tell what became of it, and why.

    The limit must be small against what is free, or a full device passes for a limit that is kept.
    The sentence is what CUDA answered; it is empty where the answer is the verdict itself.
    """
    try:
        done = subprocess.run(  # noqa: S603  ourselves
            [sys.executable, "-P", "-m", __name__, str(limit_mib)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=ANSWERS_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        # A client of another user's server is queued, not refused.
        return "unknown", f"CUDA did not answer within {ANSWERS_WITHIN_S:.0f} s"
    return _EXIT.get(done.returncode, "unknown"), done.stderr.strip()


def _allocate(mib: int) -> int:
    """Return the exit status for one allocation of so much on device 0."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return _told(f"no CUDA driver: {error}")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    for name, arguments in (
        ("cuInit", (0,)),
        ("cuCtxCreate_v2", (ctypes.byref(context), 0, 0)),
    ):
        if status := getattr(cuda, name)(*arguments):
            return _told(f"{name} answered {status}")
    size = ctypes.c_size_t(mib * MIB)
    status = cuda.cuMemAlloc_v2(ctypes.byref(memory), size)
    if status == 0:
        return 0
    return 10 if status == _OUT_OF_MEMORY else _told(f"cuMemAlloc answered {status}")


def _told(why: str) -> int:
    sys.stderr.write(f"{why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(_allocate(int(sys.argv[1]) + BEYOND_MIB))
