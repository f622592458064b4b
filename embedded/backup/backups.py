"""Backups of a platform's databases and secrets, made while it runs.

Homes and jobs' files are not included: the backup of the disk covers them.
"""

import json
import shutil
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from runai.embedded.directory import DataDirectory
from runai.hub_service.clusters.local.store.cluster_lock import check_is_whole
from runai.hub_service.sqlite.files import Tell, copy
from runai.hub_service.wire.errors import NotFound, Unavailable

DATABASES = ("cluster.sqlite", "ledger.sqlite", "jupyterhub.sqlite")
"""Workloads and projects; usage and history; users, their servers and tokens."""
MANIFEST = "backup.json"


def back_up(directory: DataDirectory, folder: Path | None = None, tell: Tell | None = None) -> Path:
    """Copy databases and secrets into a new folder below `folder`; the platform may run.

    `tell` receives the progress of each file: pages copied, and pages in all.

    Raises:
        NotFound: the directory contains no platform.
        Conflict: an interrupted restore must be finished first.
        Unavailable: a database is broken, or the disk is full.
    """
    check_is_whole(directory.root)
    found = [name for name in DATABASES if (directory.root / name).exists()]
    if not found:
        raise NotFound(
            f"There is no platform in {directory.root}.",
            hint="--data-dir names the directory of `runai up`.",
        )
    folder = folder or directory.root / "backups"
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    target, partial = folder / f"runai-{stamp}", folder / f".runai-{stamp}.partial"
    try:
        copy_all(directory.root, found, partial, tell)
        told = {"version": version("jupyter-runai"), "made": stamp, "databases": found}
        (partial / MANIFEST).write_text(json.dumps(told, indent=2) + "\n")
        partial.rename(target)
    except OSError as failed:
        raise Unavailable(
            f"No backup could be made in {folder}: {failed.strerror or failed}.",
            hint="Name a folder with room on its disk.",
        ) from failed
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def copy_all(source: Path, names: Iterable[str], target: Path, tell: Tell | None) -> None:
    """Copy databases and secrets of a platform, or of a backup, into a new folder."""
    target.mkdir(mode=0o700, parents=True)
    for name in names:
        copy(source / name, target / name, tell)
    if (source / "secrets").is_dir():
        shutil.copytree(source / "secrets", target / "secrets")
        (target / "secrets").chmod(0o700)


def read_manifest(backup: Path) -> Mapping[str, Any]:
    """Return a backup's manifest.

    Raises:
        NotFound: the folder is no backup.
    """
    try:
        told: Mapping[str, Any] = json.loads((backup / MANIFEST).read_text())
        if set(told["databases"]) <= set(DATABASES):
            return told
    except (OSError, ValueError, KeyError, RecursionError, TypeError):
        pass
    raise NotFound(
        f"{backup} is no backup of a platform.",
        hint="Name a folder that `runai backup` has made; it prints its name.",
    )
