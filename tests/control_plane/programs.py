"""Where a Kubernetes control plane's programs are on this machine, and why they are not.

    $KUBEBUILDER_ASSETS                        envtest's own variable
    ~/.cache/runai/k8s                         what `tests/control_plane/build` makes
    ~/.local/share/kubebuilder-envtest/k8s/*   setup-envtest's folders
    /usr/local/kubebuilder/bin, $PATH          an installation

An envtest release lacks kube-controller-manager, kwok and helm: each is looked for in all of them.
Called by `capabilities` and by `plane`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

BUILD = Path(__file__).with_name("build")
NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "kwok", "helm")


def find_program(name: str) -> Path | None:
    """Return a program of the first place that has it, else None."""
    for folder in _folders():
        if os.access(folder / name, os.X_OK):
            return folder / name
    found = shutil.which(name)
    return Path(found) if found else None


def find_resource(name: str) -> Path | None:
    """Return a file that lies beside the programs, else None."""
    return next((folder / name for folder in _folders() if (folder / name).is_file()), None)


def why_no_operator() -> str:
    """Say why Kubeflow's training-operator cannot be started here, or nothing."""
    if find_program("training-operator") and find_resource("pytorchjobs.yaml"):
        return ""
    go = "" if shutil.which("go") else ", which needs Go 1.26"
    return f"no training-operator (tests/control_plane/training-operator/build makes it{go})"


def why_no_kubernetes() -> str:
    """Say why no control plane can be started here, or nothing."""
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
