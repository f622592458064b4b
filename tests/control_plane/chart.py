"""The project's chart as Helm makes it: rendered, linted, installed.

Called by the fixture `plane`, which applies its rights, and by the chart's own tests.
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
"""What a rendering without a cluster must be told that the API server has."""
WITHIN_S = 120


class HelmRefused(Exception):
    """Helm failed; says what it said."""


def helm(*arguments: str, kubeconfig: Path | None = None, home: Path | None = None) -> str:
    """Run Helm, with nothing of this user's own but a `home`; return what it prints.

    Raises:
        HelmRefused: it fails.
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
    """Return the chart's objects as YAML, or those of one of its templates."""
    shown = ["--show-only", f"templates/{only}"] if only else []
    chart = ["template", "runai", str(CHART), "--namespace", "runai", "--api-versions", SERVED]
    return helm(*chart, *shown, *arguments)


def install(plane: ControlPlane, *arguments: str) -> None:
    """Install the chart, or upgrade it, in the namespace `runai`."""
    chart = ["upgrade", "--install", "runai", str(CHART), "--namespace", "runai"]
    helm(*chart, "--create-namespace", *arguments, kubeconfig=plane.kubeconfig)
