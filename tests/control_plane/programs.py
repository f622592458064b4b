"""Paths of a Kubernetes control plane's programs on this machine, and reasons why some are missing.

    $KUBEBUILDER_ASSETS                        envtest's own variable
    ~/.cache/runai/k8s                         output of `tests/control_plane/build`
    ~/.local/share/kubebuilder-envtest/k8s/*   setup-envtest's folders
    /usr/local/kubebuilder/bin, $PATH          an installation

An envtest release lacks kube-controller-manager, kube-scheduler, kwok and helm, so each program is
searched for in all of these.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

BUILD = Path(__file__).with_name("build")
NEEDED = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    *("kwok", "helm"),
)


def find_program(name: str) -> Path | None:
    """Return the program's path in the first place that has it, or None."""
    for folder in _folders():
        if os.access(folder / name, os.X_OK):
            return folder / name
    found = shutil.which(name)
    return Path(found) if found else None


def find_resource(name: str) -> Path | None:
    """Return the path of a file beside the programs, or None."""
    return next((folder / name for folder in _folders() if (folder / name).is_file()), None)


def why_no_operator() -> str:
    """Return why Kubeflow's training-operator cannot be started here, or ""."""
    if find_program("training-operator") and find_resource("pytorchjobs.yaml"):
        return ""
    go = "" if shutil.which("go") else ", which needs Go 1.26"
    return f"no training-operator (tests/control_plane/training-operator/build makes it{go})"


def why_no_kubernetes() -> str:
    """Return why no control plane can be started here, or ""."""
    missing = [name for name in NEEDED if find_program(name) is None]
    if not missing:
        return ""
    go = "" if shutil.which("go") else ", which needs Go 1.26"
    return f"not found: {', '.join(missing)} (tests/control_plane/build makes them{go})"


def _folders() -> list[Path]:
    named = os.environ.get("KUBEBUILDER_ASSETS", "")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    envtest = Path.home() / ".local/share/kubebuilder-envtest/k8s"
    return [
        *([Path(named)] if named else []),
        cache / "runai/k8s",
        *sorted(envtest.glob("*"), reverse=True),
        Path("/usr/local/kubebuilder/bin"),
    ]
