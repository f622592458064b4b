"""Paths of the programs of real nodes, and reasons why this machine cannot run such nodes.

Kubernetes' own programs come from `control_plane.programs`; `fetch` unpacks the rest from Debian's
packages. For `capabilities`, `node` and `cluster`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from control_plane.programs import find_program, why_no_kubernetes
from real_nodes.cgroups import hierarchies

DEBIAN = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runai/nodes/root"
"""Output of `fetch`: a tree as in `/`."""
OF_KUBERNETES = ("kube-proxy", "kubelet")
OF_DEBIAN = (
    "bin/busybox",
    "usr/bin/containerd",
    "usr/lib/cni/bridge",
    "usr/sbin/nft",
    "usr/sbin/runc",
)
OF_THE_SYSTEM = ("bash", "ip", "mount", "setpriv", "unshare")


def why_no_nodes() -> str:
    """Return why no real node can be started here, or ""."""
    if sys.platform != "linux" or os.geteuid():
        return "needs root on Linux"
    if missing := [name for name in OF_THE_SYSTEM if shutil.which(name) is None]:
        return f"not found: {', '.join(missing)}"
    if not hierarchies():
        return "needs control groups of version 1; version 2 alone is not supported yet"
    if missing := [name for name in OF_KUBERNETES if find_program(name) is None]:
        return f"not found: {', '.join(missing)} (tests/control_plane/build {' '.join(missing)})"
    if missing := [name for name in OF_DEBIAN if not (DEBIAN / name).exists()]:
        return f"not found: {', '.join(missing)} (tests/real_nodes/fetch unpacks them)"
    return why_no_kubernetes()
