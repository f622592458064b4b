"""The place of a data directory: a copy leaves the original alone, a moved one finds its files.

`cluster.lock` names the path and inode of the directory that was opened last, and a copy has that
file; the rows name paths, and a backup has them. At a start elsewhere the old place's locks tell
a copy of a running platform from a directory that was moved.
"""

import json
import logging
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from runai.hub_service.clusters.local.processes.attempt import Attempt
from runai.hub_service.clusters.local.processes.process_watch import is_running
from runai.hub_service.clusters.local.store.cluster_lock import (
    HUB_LOCK,
    HUB_TOKEN,
    LOCK,
    LockHolder,
    holder,
    last_holder,
)
from runai.hub_service.clusters.local.store.cluster_sqlite import MIGRATIONS
from runai.hub_service.model.records import ACTIVE, Process, WorkloadRecord
from runai.hub_service.sqlite.files import (
    new_queue_hint,
    newer,
    opened_to_read,
    unknown_revision,
)
from runai.hub_service.wire.errors import Conflict, Unavailable

LOG = logging.getLogger("runai.service")

JOBS = "jobs"
LOCKS = "*/*/attempt-*/worker-*/lock"
"""Locks of supervisors below the folder of jobs."""
MAX_NAMES = 3
"""Running workloads that an error names."""


def make_data_dir(data_dir: Path) -> Path:
    """Make a data directory, and its folder of jobs closed; return its absolute path."""
    data_dir = data_dir.absolute()
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    (data_dir / JOBS).mkdir(exist_ok=True)
    (data_dir / JOBS).chmod(0o700)
    return data_dir


def adapt_to_node(row: WorkloadRecord, node: str, devices: int) -> WorkloadRecord:
    """Return a row adapted to the machine's new name and its remaining devices."""
    workers = []
    for worker in row.workers:
        remaining = tuple(share for share in worker.devices if share.device < devices)
        if worker.state == "reserved" and (remaining != worker.devices or worker.node != node):
            workers.append(replace(worker, state="pending", node="", devices=()))
        elif worker.state in ACTIVE:
            workers.append(replace(worker, node=node, devices=remaining))
        else:
            workers.append(worker)
    resize = row.resize
    if resize is not None:
        remaining = tuple(share for share in resize.devices if share.device < devices)
        resize = replace(resize, node=node, devices=remaining) if remaining else None
    return replace(row, workers=tuple(workers), resize=resize)


def check_place(root: Path) -> None:
    """Check that a data directory can be used in its place, by this version.

    Raises:
        Conflict: as `check_original`.
        Unavailable: the database has no tables, or an earlier version wrote it.
    """
    check_tables(root)
    check_version(root)
    check_original(root)


def check_original(root: Path) -> None:
    """Check that no process of another place of this data directory runs.

    A copy would take the original's workers for its own, find none of their locks, and kill them. A
    worker of a moved directory saves and reports to the old place.

    Raises:
        Conflict: the original's platform, or a workload that began in the old place, runs.
    """
    rows = list(_rows_elsewhere(root))
    places, last = {place for place, _ in rows}, last_holder(root / LOCK)
    if last.place:
        places.add(Path(last.place))
    for old_place in sorted(place for place in places if not _is_same(place, root)):
        is_original = _is_original(old_place, root, last)
        if is_original and (by := _lock_holder_text(old_place)):
            raise Conflict(
                f"{root} is a copy of {old_place}, where a platform runs: {by}.",
                hint="Use that one, or stop it and its jobs first. To try something beside it:"
                " another machine, or an empty --data-dir.",
                code="copy_of_running",
            )
        running = {
            *(_running_jobs(old_place / JOBS) if is_original else ()),
            *_running_jobs(root / JOBS),
            *(str(row["id"]) for place, row in rows if place == old_place and _processes(row)),
        }
        if running:
            names = ", ".join(sorted(running)[:MAX_NAMES]) + (
                ", …" if len(running) > MAX_NAMES else ""
            )
            raise Conflict(
                f"{root} was {old_place} before, and workloads that began there still run:"
                f" {names}.",
                hint=f"They save to {old_place}. Was it moved? Then move it back, or leave a link"
                f" there: ln -s {root} {old_place}. Is it a copy? Then start the original and"
                " suspend them.",
                code="moved_while_running",
            )


def check_version(root: Path) -> None:
    """Check that this version reads the queue of a data directory.

    Raises:
        Unavailable: an earlier version wrote it; workloads that still run are named.
    """
    database = root / "cluster.sqlite"
    # The store reports a database that is broken or of a newer version.
    with suppress(sqlite3.Error, FileNotFoundError):
        error = newer(database, unknown_revision(database, MIGRATIONS / "versions"))
        if error.code != "database_older":
            return
        by, running = _lock_holder_text(root), list[tuple[str, int]]()
        with suppress(OSError):
            running = running_workers(root)
        first = f"First stop the platform that has it open: {by}. " if by else ""
        if running:
            stops = (f"{workload}: kill -TERM {pid}." for workload, pid in running)
            first += f"Workloads of it still run. {' '.join(stops)} "
        raise Unavailable(
            f"{database} is the queue of an earlier version, which this one does not read;"
            " nothing was started.",
            hint=first + new_queue_hint(root),
            code=error.code,
        )


def running_workers(root: Path) -> list[tuple[str, int]]:
    """Return each worker that runs: its workload, and the PID to stop it by.

    It is a job's supervisor, or the process of a session, which has none.

    Raises:
        OSError: a lock cannot be read.
    """
    found = list(_supervisors(root / JOBS))
    jobs = {workload for workload, _ in found}
    for row in _rows(root, "1"):
        if row["id"] not in jobs:
            found += [(row["id"], process.pid) for process in _processes(row)]
    return found


def check_tables(root: Path) -> None:
    """Check that `cluster.sqlite` has its tables if there are directories of jobs.

    They are still in the write-ahead log when a running platform's files are copied without it.

    Raises:
        Unavailable: it is empty or has no table.
    """
    database = root / "cluster.sqlite"
    if not database.exists() or not any((root / JOBS).glob("*/*")):
        return
    # The store reports a database that cannot be read.
    with suppress(sqlite3.Error), closing(opened_to_read(database)) as opened:
        if opened.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            raise Unavailable(
                f"{database} is empty, and {root / JOBS} has directories of jobs.",
                hint="Was it copied from a running platform? Then copy cluster.sqlite-wal with it,"
                " or make a backup there with `runai backup`. To start without these jobs, move"
                " cluster.sqlite away.",
                code="database_empty",
            )


def moved_rows(rows: Iterable[WorkloadRecord], root: Path) -> list[WorkloadRecord]:
    """Return the rows of a data directory that was in another place, with their paths changed.

    Paths are in directories, commands, environments and working directories. `rows` are read only
    if the directory was elsewhere.
    """
    places = {place for place, _ in _rows_elsewhere(root) if not _is_same(place, root)}
    moved: list[WorkloadRecord] = []
    for row in rows if places else ():
        old_place = _data_dir_of(row.log_dir, row.id)
        if old_place is not None and old_place in places:
            moved.append(_moved(row, old_place, root))
    for old_place in sorted(places):
        LOG.info("the data directory was %s: the paths of its workloads are changed", old_place)
    return moved


def _rows_elsewhere(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the stored workloads with directories in another place, and that place."""
    here = json.dumps(f"{root}/{JOBS}/", ensure_ascii=False)[1:-1]
    for row in _rows(root, "instr(row, ?) = 0", f'"log_dir":"{here}'):
        if (old_place := _data_dir_of(row["log_dir"], row["id"])) is not None:
            yield old_place, row


def _rows(root: Path, condition: str, *values: str) -> Iterator[dict[str, Any]]:
    """Yield the stored workloads, also of an earlier version, with their ids."""
    # The store reports a database that is broken or of another version.
    with (
        suppress(sqlite3.Error, FileNotFoundError),
        closing(opened_to_read(root / "cluster.sqlite")) as opened,
    ):
        query = f"SELECT id, row FROM workloads WHERE {condition}"  # noqa: S608  our own conditions
        for name, text in opened.execute(query, values):
            row = json.loads(text)
            yield {"id": name, **row.get("record", row)}  # earlier ones had a part so called


def _data_dir_of(log_dir: str, workload: str) -> Path | None:
    """Return the data directory that a workload's log directory is in; None for another path."""
    root = log_dir.removesuffix(f"/{JOBS}/{workload}")
    return None if root == log_dir else Path(root or "/")


def _is_original(old_place: Path, root: Path, last: LockHolder) -> bool:
    """Return False if another platform's directory, or none, lies at a directory's earlier place.

    A copy has another inode than the one that was opened, and a copy and a backup have the
    original's token.
    """
    if str(old_place) == last.place and last.inode != _inode(old_place):
        return False
    tokens = {_token(old_place), _token(root)} - {b""}
    return len(tokens) < 2


def _token(root: Path) -> bytes:
    """Return the secret of a platform's hub; b"" if it cannot be read."""
    with suppress(OSError):
        return (root / HUB_TOKEN).read_bytes()
    return b""


def _inode(place: Path) -> int:
    """Return a directory's inode; 0 if it cannot be seen."""
    with suppress(OSError):
        return place.stat().st_ino
    return 0


def _is_same(place: Path, root: Path) -> bool:
    """Return True if both paths name one directory, as through a link."""
    try:
        return place.samefile(root)
    except OSError:
        return False


def _lock_holder_text(place: Path) -> str:
    """Return the holder of a data directory's locks in words; "" without one."""
    with suppress(OSError):  # of another account: its processes are out of reach
        if (by := holder(place / LOCK)) is not None:
            return str(by)
        if holder(place / HUB_LOCK) is not None:
            return (place / HUB_LOCK).read_text(errors="replace").strip()
    return ""


def _running_jobs(jobs: Path) -> Iterator[str]:
    """Yield the jobs with a supervisor that holds a lock below a folder."""
    with suppress(OSError):
        for job, _pid in _supervisors(jobs):
            yield job


def _supervisors(jobs: Path) -> Iterator[tuple[str, int]]:
    """Yield the job and the PID of each supervisor that holds a lock below a folder."""
    for lock in sorted(jobs.glob(LOCKS)):
        if (pid := Attempt(lock.parent).holder()) is not None:
            yield "/".join(lock.relative_to(jobs).parts[:2]), pid


def _processes(row: dict[str, Any]) -> list[Process]:
    """Return the running processes of stored workers: a session has no supervisor."""
    active = (worker for worker in row["workers"] if worker["state"] in ACTIVE)
    known = (Process(**worker["process"]) for worker in active if worker.get("process"))
    return [process for process in known if is_running(process)]


def _moved(row: WorkloadRecord, old_place: Path, root: Path) -> WorkloadRecord:
    """Return a row with its paths below `old_place` changed to paths below `root`."""
    path = path_mover(old_place, root)
    spec = row.spec
    spec = replace(
        spec,
        workdir=path(spec.workdir),
        env={name: path(value) for name, value in spec.env.items()},
        command=None if spec.command is None else tuple(map(path, spec.command)),
    )
    return replace(
        row, spec=spec, checkpoint_dir=path(row.checkpoint_dir), log_dir=path(row.log_dir)
    )


def path_mover(old_place: Path, root: Path) -> Callable[[str], str]:
    """Return a function that moves the paths of a text: `DIR/x`, `DIR/x:DIR/y`, `--x=DIR/y`."""
    old = re.compile(rf"(?<![^:=]){re.escape(str(old_place))}(?=[/:]|$)")
    return lambda text: old.sub(lambda _: str(root), text)
