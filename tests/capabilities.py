"""Capabilities of the machine that some tests need, and the skip if one is missing.

A capability is a marker of the same name: `@pytest.mark.browser`. If it is missing, its tests are
skipped with the reason. If `RUNAI_REQUIRE` (comma-separated) names the capability, the skip is a
failure, so that an unattended run cannot pass by leaving tests out.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from control_plane.named_cluster import why_no_cluster
from control_plane.programs import why_no_kubernetes, why_no_operator
from crashes.small_disk import why_no_mounts
from postgres import find_postgres
from real_nodes.programs import why_no_nodes
from runai.hub_service.limits.cgroups import Groups, GroupsUnavailable

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> Path | None:
    """Return the system's Chromium, else the one Playwright downloaded, else None."""
    for name in CHROMIUM_NAMES:
        if found := shutil.which(name):
            return Path(found)
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache/ms-playwright"))
    return next(iter(sorted(cache.glob("chromium-*/chrome-linux*/chrome"), reverse=True)), None)


def _why_no_browser() -> str:
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed (make test installs it)"
    if find_chromium() is None:
        return f"no Chromium found: {', '.join(CHROMIUM_NAMES)} (Debian: apt install chromium)"
    return ""


def _why_no_hub() -> str:
    missing = [n for n in ("jupyterhub", "jupyterlab") if importlib.util.find_spec(n) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def _why_no_axe() -> str:
    if missing := _why_no_browser():
        return missing
    from accessibility import why_no_axe  # imports Playwright

    return why_no_axe()


def _why_no_vscode_widgets() -> str:
    if missing := _why_no_browser():
        return missing
    from e2e.vscode import why_no_vscode_widgets  # imports Playwright

    return why_no_vscode_widgets()


def _why_no_module(name: str) -> str:
    # Not imported for the check: that takes seconds.
    return (
        ""
        if importlib.util.find_spec(name)
        else f"{name} is not installed (make test-all installs it)"
    )


def _why_no_tools(target: str, *names: str) -> str:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)} (make {target} installs them)" if missing else ""


def _why_no_compiler() -> str:
    return (
        ""
        if shutil.which("cc")
        else "no C compiler, cc, to make fake drivers' libraries with (Debian: apt install gcc)"
    )


def _why_no_node() -> str:
    return "" if shutil.which("node") else "no Node.js found (Debian: apt install nodejs)"


def _why_no_postgresql() -> str:
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (make test installs it)"
    if find_postgres() is None:
        return "no PostgreSQL server found (Debian: apt install postgresql)"
    return ""


def _why_no_prometheus() -> str:
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    return f"not found: {', '.join(missing)} (Debian: apt install prometheus)" if missing else ""


def _why_no_cgroups() -> str:
    try:
        Groups.find()
    except GroupsUnavailable as error:
        return str(error)
    return ""


# Each function returns why the capability is missing, or an empty result.
CAPABILITIES: Mapping[str, Callable[[], str]] = {
    "axe": _why_no_axe,
    "browser": _why_no_browser,
    "cc": _why_no_compiler,
    "cgroups": _why_no_cgroups,
    "hub": _why_no_hub,
    "kubeflow": why_no_operator,
    "jax": partial(_why_no_module, "jax"),
    "keras": partial(_why_no_module, "keras"),
    "kubernetes": why_no_kubernetes,
    "mounts": why_no_mounts,
    "node": _why_no_node,
    "nodes": why_no_nodes,
    "own_cluster": why_no_cluster,
    "large_tools": partial(_why_no_tools, "test-versions", "dvc", "mlflow", "ray", "wandb"),
    "tools": partial(
        _why_no_tools,
        "test-all",
        *("accelerate", "hydra", "joblib", "lightning", "optuna", "submitit", "tensorboard"),
        *("torch", "uv"),
    ),
    "tensorflow": partial(_why_no_module, "tensorflow"),
    "torch": partial(_why_no_module, "torch"),
    "vscode": _why_no_vscode_widgets,
    "postgresql": _why_no_postgresql,
    "prometheus": _why_no_prometheus,
}


def required() -> frozenset[str]:
    """Return the capabilities that must not be missing.

    Raises:
        ValueError: `RUNAI_REQUIRE` names an unknown capability.
    """
    names = frozenset(
        name.strip() for name in os.environ.get("RUNAI_REQUIRE", "").split(",") if name.strip()
    )
    if unknown := sorted(names - CAPABILITIES.keys()):
        raise ValueError(
            f"RUNAI_REQUIRE names {', '.join(unknown)}; there is: {', '.join(CAPABILITIES)}"
        )
    return names
