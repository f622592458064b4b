"""The project's chart, rendered, linted and installed by Helm.

The fixture `plane` applies its rights; the chart's own tests use the rest.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from control_plane.plane import ControlPlane
from control_plane.programs import find_program

CHART = Path(__file__).parents[2] / "helm"
SERVED = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
"""API versions that a rendering without a cluster must be given."""
WITHIN_S = 120


class HelmRefused(Exception):
    """An error of Helm, with its output."""


def helm(*arguments: str, kubeconfig: Path | None = None, home: Path | None = None) -> str:
    """Run Helm, with `home` in place of this user's own settings; return its output.

    Raises:
        HelmRefused: Helm fails.
    """
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [str(find_program("helm")), *arguments],
            env={**os.environ, "HOME": str(home or empty), "KUBECONFIG": str(kubeconfig or "")},
            text=True,
            capture_output=True,
            check=False,
            timeout=WITHIN_S,
        )
    if done.returncode:
        raise HelmRefused(done.stderr + done.stdout)
    return done.stdout


def rendered(*arguments: str, only: str = "") -> str:
    """Return the chart's objects as YAML, or the objects of one of its templates."""
    template_option = ["--show-only", f"templates/{only}"] if only else []
    chart = ["template", "runai", str(CHART), "--namespace", "runai", "--api-versions", SERVED]
    return helm(*chart, *template_option, *arguments)


def install(plane: ControlPlane, *arguments: str) -> None:
    """Install the chart, or upgrade it, in the namespace `runai`."""
    chart = ["upgrade", "--install", "runai", str(CHART), "--namespace", "runai"]
    helm(*chart, "--create-namespace", *arguments, kubeconfig=plane.kubeconfig)
