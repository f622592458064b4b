"""Copies of a platform's databases and secrets: made while it runs, put back while it does not.

Knows what of a data directory cannot be made again (`CONTENTS`); homes and what jobs write are
files like others, for whatever backs up the disk. Used by `runai backup` and `runai restore`.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from runai.embedded.directory import DataDirectory
from runai.hub_service import database_files
from runai.hub_service.clusters.local.attempt import Attempt
from runai.hub_service.clusters.local.ownership import claim
from runai.hub_service.clusters.local.store import SqliteStore
from runai.hub_service.errors import Conflict, NotFound, Unavailable

__all__ = ["DATABASES", "Restored", "back_up", "restore"]

DATABASES = ("cluster.sqlite", "ledger.sqlite", "jupyterhub.sqlite")
"""Workloads and projects; usage and history; users, their servers and tokens."""
MANIFEST = "backup.json"
Tell = Callable[[str, int, int], None]
GONE_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restoration has done."""

    databases: tuple[str, ...]
    aside: Path
    """Where what was there before has gone."""
    stopped: tuple[str, ...]
    """Workers that the backup does not know."""


def back_up(directory: DataDirectory, folder: Path | None = None, tell: Tell | None = None) -> Path:
    """Copy databases and secrets into a new folder below `folder`; the platform may run.

    `tell` is told of each file how many of its pages are copied, and of how many.

    Raises:
        NotFound: there is no platform.
        Unavailable: a database is broken, or there is no room.
    """
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
        partial.mkdir(mode=0o700, parents=True)
        for name in found:
            database_files.copy(directory.root / name, partial / name, _of(name, tell))
        if directory.secrets.is_dir():
            shutil.copytree(directory.secrets, partial / "secrets")
            (partial / "secrets").chmod(0o700)
        told = {"version": version("jupyter-runai"), "made": stamp, "databases": found}
        (partial / MANIFEST).write_text(json.dumps(told, indent=2) + "\n")
        partial.rename(target)
    except OSError as failed:
        shutil.rmtree(partial, ignore_errors=True)
        raise Unavailable(
            f"No backup could be made in {folder}: {failed.strerror}.",
            hint="Name a folder with room on its disk.",
        ) from failed
    except Unavailable:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def restore(
    directory: DataDirectory,
    backup: Path,
    *,
    stop_unknown: bool = False,
    tell: Tell | None = None,
) -> Restored:
    """Put a backup back; what is there goes aside, nothing is deleted. `tell` as of `back_up`.

    Raises:
        NotFound: it is no backup.
        Conflict: the platform or its service runs, or workers run that the backup does not know.
        Unavailable: a database of the backup is broken.
    """
    told = _manifest(backup)
    names = tuple(name for name in DATABASES if name in told["databases"])
    for name in names:
        database_files.check(backup / name)
    directory.prepare(system_users=False)
    lock = directory.lock(f"a restoration (process {os.getpid()})")
    try:
        cluster = claim(directory.root)
    except Conflict:
        os.close(lock)
        raise
    try:
        staged = directory.root / f".restoring-{os.getpid()}"
        staged.mkdir(mode=0o700)
        try:
            for name in names:
                database_files.copy(backup / name, staged / name, _of(name, tell))
            attempts = _attempts(staged / "cluster.sqlite")
            unknown = dict(_unknown(directory.root / "jobs", attempts))
            if unknown and not stop_unknown:
                listed = ", ".join(sorted(unknown))
                raise Conflict(
                    f"Workers run that this backup does not know: {listed}.",
                    hint="They would run beside others on the same GPUs. End them, or say"
                    " --stop-unknown.",
                    code="unknown_workers",
                )
            _stop(unknown)
            aside = directory.root / f"before-restore-{time.strftime('%Y-%m-%dT%H-%M-%S')}"
            aside.mkdir(mode=0o700)
            _put_aside(directory, aside, names, attempts)
            for name in names:
                (staged / name).rename(directory.root / name)
            if (backup / "secrets").is_dir():
                directory.secrets.rename(aside / "secrets")
                shutil.copytree(backup / "secrets", directory.secrets)
                directory.secrets.chmod(0o700)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    finally:
        os.close(cluster)
        os.close(lock)
    return Restored(names, aside, tuple(sorted(unknown)))


def _of(name: str, tell: Tell | None) -> Callable[[int, int], None] | None:
    return None if tell is None else lambda done, of: tell(name, done, of)


def _manifest(backup: Path) -> Mapping[str, list[str]]:
    try:
        told: Mapping[str, list[str]] = json.loads((backup / MANIFEST).read_text())
        if set(told["databases"]) <= set(DATABASES):
            return told
    except (OSError, ValueError, KeyError, RecursionError, TypeError):
        pass
    raise NotFound(
        f"{backup} is no backup of a platform.",
        hint="Name a folder that `runai backup` has made; it prints its name.",
    )


def _attempts(database: Path) -> dict[str, tuple[int, bool]]:
    """Return how often each workload of a database was started, and whether it is active."""
    if not database.exists():
        return {}
    store = SqliteStore(database)
    try:
        return {row.id: (row.record.attempts, bool(row.active)) for row in store.rows()}
    finally:
        store.close()


def _unknown(jobs: Path, attempts: Mapping[str, tuple[int, bool]]) -> Iterator[tuple[str, Attempt]]:
    """Yield the workers that run in a start that the database does not know as running."""
    for lock in jobs.glob("*/*/attempt-*/worker-*/lock"):
        attempt = Attempt(lock.parent)
        project, name, started, worker = lock.parent.relative_to(jobs).parts
        known = attempts.get(f"{project}/{name}") == (int(started.removeprefix("attempt-")), True)
        if not known and attempt.holder() is not None:
            yield f"{project}/{name}-{worker.removeprefix('worker-')}", attempt


def _stop(unknown: Mapping[str, Attempt]) -> None:
    for attempt in unknown.values():
        if (pid := attempt.holder()) is not None:
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + GONE_WITHIN_S
    while any(attempt.holder() is not None for attempt in unknown.values()):
        if time.monotonic() > deadline:
            raise Conflict(
                f"They do not end: {', '.join(sorted(unknown))}.",
                hint="Their grace may be longer; try again.",
            )
        time.sleep(0.1)


def _put_aside(
    directory: DataDirectory,
    aside: Path,
    names: tuple[str, ...],
    attempts: Mapping[str, tuple[int, bool]],
) -> None:
    for name in names:
        for path in directory.root.glob(f"{name}*"):  # with the log beside it
            path.rename(aside / path.name)
    # A later workload of the same name must not find how another one has ended.
    jobs = directory.root / "jobs"
    for path in sorted(jobs.glob("*/*/attempt-*")):
        project, name, started = path.relative_to(jobs).parts
        if int(started.removeprefix("attempt-")) > attempts.get(f"{project}/{name}", (0, False))[0]:
            target = aside / "jobs" / project / name / started
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.rename(target)
