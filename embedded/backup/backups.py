"""Backups of a platform's databases and secrets, made while it runs.

Homes and jobs' files are not included: the backup of the disk covers them.
"""

import errno
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from runai.embedded.data_directory import DataDirectory
from runai.hub_service.clusters.local.store.cluster_lock import check_is_whole
from runai.hub_service.sqlite.files import ReportProgress, copy
from runai.hub_service.wire.errors import NotFound, Unavailable

DATABASES = ("cluster.sqlite", "ledger.sqlite", "jupyterhub.sqlite")
"""Workloads and projects; usage and history; users, their servers and tokens."""
MANIFEST = "backup.json"
ABANDONED_AFTER_S = 24 * 3600
"""Age from which an unfinished backup is taken for a killed one's."""


def back_up(
    directory: DataDirectory,
    folder: Path | None = None,
    report_progress: ReportProgress | None = None,
) -> Path:
    """Copy databases and secrets into a new folder below `folder`; the platform may run.

    `report_progress` receives the progress of each file: pages copied, and pages in all.

    Raises:
        NotFound: the directory contains no platform.
        Conflict: an interrupted restore must be finished first.
        Unavailable: a database is broken, or the disk is full.
    """
    check_is_whole(directory.root)
    databases = [name for name in DATABASES if (directory.root / name).exists()]
    if not databases:
        raise NotFound(
            f"There is no platform in {directory.root}.",
            hint="--data-dir names the directory of `runai up`.",
        )
    folder = folder or directory.root / "backups"
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    partial = folder / f".runai-{stamp}-{secrets.token_hex(4)}.partial"
    try:
        _remove_abandoned(folder)
        copy_all(directory.root, databases, partial, report_progress)
        content = {"version": version("jupyter-runai"), "made": stamp, "databases": databases}
        (partial / MANIFEST).write_text(json.dumps(content, indent=2) + "\n")
        return _rename_to_free(partial, folder / f"runai-{stamp}")
    except OSError as failed:
        raise Unavailable(
            f"No backup could be made in {folder}: {failed.strerror or failed}.",
            hint="Name a folder that this account may write, with room on its disk.",
        ) from failed
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _rename_to_free(partial: Path, target: Path) -> Path:
    """Rename a finished backup to `target`; with a number if one of the same second has it."""
    for number in range(2, 1000):
        try:
            return partial.rename(target)
        except OSError as failed:
            if failed.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                raise
        target = target.with_name(f"{target.name.partition('+')[0]}+{number}")
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))


def _remove_abandoned(folder: Path) -> None:
    """Remove the unfinished backups of killed commands."""
    for path in folder.glob(".runai-*.partial"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - ABANDONED_AFTER_S:
                shutil.rmtree(path)


def copy_backup(
    backup: Path, names: Iterable[str], target: Path, report_progress: ReportProgress | None
) -> None:
    """Copy databases and secrets of a backup, which its maker may have filled with anything.

    Raises:
        Unavailable: something in it is no regular file: a link, a device or a pipe.
    """
    paths = [backup / name for name in names]
    for folder, folders, files in os.walk(backup / "secrets"):
        paths += [Path(folder, name) for name in files]
        if linked := [name for name in folders if Path(folder, name).is_symlink()]:
            raise _not_regular(Path(folder, linked[0]))
    if (backup / "secrets").is_symlink():
        raise _not_regular(backup / "secrets")
    for path in paths:
        os.close(_open_regular(path))
    copy_all(backup, names, target, report_progress, _copy_regular)


def _copy_regular(source: str, target: str) -> None:
    """Copy a file with its mode; refuse what it was replaced by since the folder was read."""
    with open(_open_regular(Path(source)), "rb") as from_, Path(target).open("xb") as to:
        os.fchmod(to.fileno(), stat.S_IMODE(os.fstat(from_.fileno()).st_mode))
        shutil.copyfileobj(from_, to)


def _open_regular(path: Path) -> int:
    """Return the descriptor of a regular file; neither follow a link nor wait for a pipe.

    Raises:
        Unavailable: it is something else.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as failed:
        if failed.errno in {errno.ELOOP, errno.ENXIO}:
            raise _not_regular(path) from failed
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_regular(path)
    return fd


def _not_regular(path: Path) -> Unavailable:
    return Unavailable(
        f"{path} is no regular file, as all of a backup are.",
        hint="`runai backup` makes none like it: copy the backup again from where it was made.",
        code="not_a_backup",
    )


def copy_all(
    source: Path,
    names: Iterable[str],
    target: Path,
    report_progress: ReportProgress | None,
    copy_secret: Callable[[str, str], None] | None = None,
) -> None:
    """Copy databases and secrets of a platform, or of a backup, into a new folder."""
    target.mkdir(mode=0o700, parents=True)
    for name in names:
        copy(source / name, target / name, report_progress)
    if (source / "secrets").is_dir():
        shutil.copytree(
            source / "secrets", target / "secrets", copy_function=copy_secret or _copy_if_exists
        )
        (target / "secrets").chmod(0o700)


def _copy_if_exists(source: str, target: str) -> None:
    """Copy a file with its mode; skip one that a writer has renamed since the folder was read."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        if os.path.lexists(source):  # a link to nowhere
            raise


def read_manifest(backup: Path) -> Mapping[str, Any]:
    """Return a backup's manifest.

    Raises:
        NotFound: the folder is no backup.
        Unavailable: its manifest is no regular file.
    """
    try:
        with open(_open_regular(backup / MANIFEST), encoding="utf-8") as manifest:
            content: Mapping[str, Any] = json.load(manifest)
        if set(content["databases"]) <= set(DATABASES):
            return content
    except (OSError, ValueError, KeyError, RecursionError, TypeError):
        pass
    raise NotFound(
        f"{backup} is not a backup of a platform.",
        hint="Name a folder that `runai backup` has made; it prints its name.",
    )
