"""Test of a memory limit: a separate process tries to allocate more than the limit.

`python -m runai.hub_service.limits.memory_probe MIB` allocates MIB plus one GiB through the CUDA
driver, in the environment of a client with the limit MIB. A limit that is set but not enforced (MPS
across PID namespaces, for example) is worse than none, so a limit is advertised only after this
allocation was refused.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final, Literal

from runai.hub_service.processes.own_process import MODULE

Verdict = Literal["refused", "allowed", "unknown"]
"""Result of the allocation; unknown: another error, or no answer in time."""

MIB: Final = 1 << 20
BEYOND_MIB: Final = 1024
ANSWERS_WITHIN_S: Final = 30.0

_OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
_EXIT: Final[Mapping[int, Verdict]] = {0: "allowed", 10: "refused"}


def try_limit(limit_mib: int, environment: Mapping[str, str]) -> tuple[Verdict, str]:
    """Test a limit in a child process; return verdict and reason.

    `environment` is added to ours.

    The limit must be small compared to the free memory: on a full device every allocation fails, as
    if the limit held. The reason is CUDA's answer; it is "" if the verdict says it all.
    """
    try:
        done = subprocess.run(  # noqa: S603  our own module
            [*MODULE, __name__, str(limit_mib)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=ANSWERS_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        # MPS queues a client behind another user's server instead of refusing it.
        return "unknown", f"CUDA did not answer within {ANSWERS_WITHIN_S:.0f} s"
    return _EXIT.get(done.returncode, "unknown"), done.stderr.strip()


def _allocate(mib: int) -> int:
    """Allocate `mib` MiB on device 0; return the exit status."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return _unknown(f"no CUDA driver: {error}")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    for name, arguments in (
        ("cuInit", (0,)),
        ("cuCtxCreate_v2", (ctypes.byref(context), 0, 0)),
    ):
        if status := getattr(cuda, name)(*arguments):
            return _unknown(f"{name} answered {status}")
    size = ctypes.c_size_t(mib * MIB)
    status = cuda.cuMemAlloc_v2(ctypes.byref(memory), size)
    if status == 0:
        return 0
    return 10 if status == _OUT_OF_MEMORY else _unknown(f"cuMemAlloc answered {status}")


def _unknown(why: str) -> int:
    """Write the reason to standard error; return the exit status for an unknown verdict."""
    sys.stderr.write(f"{why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(_allocate(int(sys.argv[1]) + BEYOND_MIB))
