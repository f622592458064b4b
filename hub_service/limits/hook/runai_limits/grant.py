"""Refresh of a session's devices in the environment of its kernels and scripts.

A notebook server passes on its own environment, with the devices of its start; the session may have
released them and received other devices since. One query per process, before any framework uses
the variables. A user's own settings stay.
"""

from __future__ import annotations

import sys

from .service_query import query_service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "RUNAI_GPU_DEVICES")
SHARE = (
    *("RUNAI_GPU_FRACTION", "RUNAI_GPU_MEMORY_LIMIT_MIB", "RUNAI_GPU_MEMORY_LIMITS_MIB"),
    *("RUNAI_GPU_DEVICES_MIB", "RUNAI_GPU_CONTEXT_MIB"),
    *("XLA_PYTHON_CLIENT_MEM_FRACTION", "CUPY_GPU_MEMORY_LIMIT"),
    *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
)
NONE = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void", "RUNAI_GPU_DEVICES": ""}

NO_GPU = (
    "This session has no GPU now. Get GPU back in JupyterLab's side bar, or `runai regain`, asks"
    " for it again; restart the kernel then.\n"
)


def renew(environ: MutableMapping[str, str]) -> None:
    """Set the session's current devices in the environment, if they have changed."""
    granted = environ.get("RUNAI_GPU_DEVICES")
    if (
        environ.get("RUNAI_KIND") != "session"
        or granted is None
        or environ.get("CUDA_VISIBLE_DEVICES") != granted
    ):
        return
    answer = query_service(environ, "/environment")
    # The session waits for devices, or must release them: hide all devices.
    now = NONE if answer.get("code") == "no_allocation" else answer.get("environment")
    if not now or now.get("RUNAI_GPU_DEVICES") == granted:
        return
    if not now.get("RUNAI_GPU_DEVICES"):
        sys.stderr.write(NO_GPU)
    for name in (*DEVICES, *SHARE):
        if name in now:
            environ[name] = now[name]
        else:
            environ.pop(name, None)
