"""Storage of rows and projects in `cluster.sqlite`, the local cluster's state of record.

One process at a time writes it (`cluster_lock`). A `save` that returned survives a power cut (WAL,
synchronous=FULL), except with `soon`, for data that is set again if lost. Alembic runs schema
migrations when there are any.
"""

import logging
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import (
    URL,
    Column,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    create_engine,
    event,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DatabaseError, OperationalError

from runai.hub_service.clusters.states.worker_bounds import with_scale
from runai.hub_service.model.records import (
    HistoryEvent,
    ProjectRecord,
    ProjectSpec,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.sqlite.files import check, newer
from runai.hub_service.sqlite.upgrade import not_upgraded, revision, upgrade_file
from runai.hub_service.wire.errors import Unavailable

LOG = logging.getLogger("runai.service")

LATEST = "0200"
"""Newest revision in `MIGRATIONS`."""

MIGRATIONS = Path(__file__).with_name("migrations")

ROWS = 2
"""Version of the JSON of rows and projects, which needs no revision.

Raised with each new field (`tests/upgrades/rows.json`): an older program would drop it on save.
"""

TRY_AGAIN_S = 2.0
BUSY_TIMEOUT_MS = 5000
MIN_FREE_BYTES = 2**20
"""Free bytes below which one successful write does not mean that the next one fits."""

BALLAST_BYTES, BALLAST_PIECE = 2**22, 2**20
"""Size of the file that is given up, piece by piece, for stops and deletions on a full disk."""
BALLAST_PART = 4
"""The ballast is made where it takes at most one part in so many of the free room."""

metadata = MetaData()

workloads = Table(
    "workloads",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("spec", Text, nullable=False),  # never changes; may hold a large source
    Column("row", Text, nullable=False),
)
history = Table(
    "history",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("workload", String, nullable=False, index=True),
    Column("at", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("text", Text, nullable=False),
)
projects = Table(
    "projects",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("name", String, nullable=False, unique=True),
    Column("created", Float, nullable=False),
    Column("spec", Text, nullable=False),
)

_ROW = TypeAdapter(WorkloadRecord)
_SPEC = TypeAdapter(WorkloadSpec)
_PROJECT = TypeAdapter(ProjectSpec)


class UnreadableRowError(ValueError):
    """A row that no version of this program has written."""


class SqliteStore:
    """Rows and projects in one SQLite file, written by one process."""

    def __init__(self, path: Path) -> None:
        """Open the file, creating or migrating it; only its owner may read it.

        Raises:
            Unavailable: it is corrupt, not writable, or was written by a newer version.
        """
        check(path)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._path = path
        self._ballast = path.with_name(f"{path.name}-ballast")
        self._has_ballast = False
        self._make_ballast()
        self._file_identity = _identity_of(path)
        self._has_deleted = True
        """True if the log may still have deleted rows, as after a crash."""
        self._failure = ""
        self._retried_at = 0.0
        self._is_synchronous = True
        self._engine = create_engine(URL.create("sqlite", database=str(path)), hide_parameters=True)
        event.listen(self._engine, "connect", _set_pragmas)
        self._connection = self._engine.connect()
        try:
            rows = self._rows_version()
            if revision(self._connection) != LATEST:
                upgrade_file(path, MIGRATIONS)
            if rows < ROWS:
                self._connection.exec_driver_sql(f"PRAGMA user_version = {ROWS}")
                self._connection.commit()
        except OperationalError as failed:
            self.close()
            raise not_upgraded(path, failed) from failed
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        self._engine.dispose()

    def rows(self) -> Iterator[WorkloadRecord]:
        """Yield all workloads, oldest first.

        Raises:
            Unavailable: one of them cannot be read.
        """
        found = self._connection.execute(
            select(workloads.c.id, workloads.c.spec, workloads.c.row).order_by(workloads.c.number)
        ).all()
        self._connection.rollback()
        for workload, spec, row in found:
            with self._readable(f"workload {workload}"):
                read = _read_row(spec, row)
            yield read

    def projects(self) -> Iterator[ProjectRecord]:
        """Yield all projects, oldest first.

        Raises:
            Unavailable: one of them cannot be read.
        """
        found = self._connection.execute(select(projects).order_by(projects.c.number)).all()
        self._connection.rollback()
        for project in found:
            with self._readable(f"project {project.name}"):
                spec = _PROJECT.validate_json(project.spec)
            yield ProjectRecord(spec, project.created)

    @contextmanager
    def _readable(self, what: str) -> Iterator[None]:
        """Raise Unavailable, with `what` as the subject, if the block cannot parse a row."""
        try:
            yield
        except (ValidationError, UnreadableRowError) as broken:
            raise Unavailable(
                f"{self._path} is damaged: the row of {what} cannot be read.",
                hint="Put a backup of it in place (runai restore), or mend that row with sqlite3.",
                code="damaged_row",
            ) from broken

    def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return a workload's events, oldest first."""
        found = self._connection.execute(
            select(history.c.at, history.c.kind, history.c.text)
            .where(history.c.workload == workload)
            .order_by(history.c.number)
        ).all()
        self._connection.rollback()
        return [HistoryEvent(at, kind, text) for at, kind, text in found]

    async def stored(self, workloads: Collection[WorkloadId]) -> None:
        """Return at once: what `save` has written is durable, but for what it was to write soon."""

    def save(
        self,
        rows: Sequence[WorkloadRecord] = (),
        *,
        deleted: Sequence[WorkloadId] = (),
        events: Sequence[tuple[WorkloadId, HistoryEvent]] = (),
        projects: Sequence[ProjectRecord] = (),
        deleted_projects: Sequence[str] = (),
        soon: bool = False,
        urgent: bool = False,
    ) -> None:
        """Write everything in one transaction; durable on return, or with `soon` at the next one.

        On a full disk an `urgent` write takes the room of the ballast.

        Raises:
            Unavailable: nothing was written; the disk is full, or not writable.
        """
        while True:
            try:
                self._save(rows, deleted, events, projects, deleted_projects, soon=soon)
            except Unavailable:
                if not urgent or not self._give_up_ballast():
                    raise
            else:
                return

    def _save(
        self,
        rows: Sequence[WorkloadRecord],
        deleted: Sequence[WorkloadId],
        events: Sequence[tuple[WorkloadId, HistoryEvent]],
        projects: Sequence[ProjectRecord],
        deleted_projects: Sequence[str],
        *,
        soon: bool,
    ) -> None:
        self._has_deleted |= bool(deleted)
        with self._transaction(soon=soon):
            self._save_rows(rows)
            self._save_projects(projects)
            self._save_history(events)
            for table, column, names in (
                (workloads, workloads.c.id, deleted),
                (history, history.c.workload, deleted),
                (metadata.tables["projects"], metadata.tables["projects"].c.name, deleted_projects),
            ):
                if names:
                    condition = column == bindparam("named")
                    self._connection.execute(
                        table.delete().where(condition), [{"named": name} for name in names]
                    )
        self._cut_log()

    def _cut_log(self) -> None:
        """Empty the write-ahead log after a deletion: variables of a deleted job may be secret.

        While somebody reads the file, as for a backup, or the disk is nearly full, a later write or
        look at the store's health tries it again.
        """
        if not self._has_deleted or self._free_bytes() < MIN_FREE_BYTES:
            return
        try:
            self._connection.exec_driver_sql("PRAGMA busy_timeout=0")
            cut = self._connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
            self._has_deleted = bool(cut[0])
        except DatabaseError as failed:  # the deletion is stored all the same
            LOG.warning("the log of %s is not cut yet: %s", self._path.name, failed.orig)
        finally:
            self._connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            self._connection.rollback()

    def replace(self, rows: Sequence[WorkloadRecord]) -> None:
        """Write rows with their specifications, which no other write changes.

        Raises:
            Unavailable: nothing was written.
        """
        with self._transaction():
            self._save_rows(rows, "row", "spec")

    def check_is_there(self) -> None:
        """Check that the open file is the one at its path.

        Raises:
            Unavailable: its directory was moved away, or its disk unmounted. Whatever is made at
                the path meanwhile would be lost for the platform.
        """
        if (away := self._missing_file_error()) is not None:
            raise away

    def _missing_file_error(self) -> Unavailable | None:
        """Return the error if the open file is no longer the one at its path; else None."""
        with suppress(OSError):
            if _identity_of(self._path) == self._file_identity:
                return None
        return Unavailable(
            f"Nothing can be stored now: {self._path} is gone, or another file than the open one.",
            hint="What runs goes on. An admin moves the data directory back, or mounts its disk.",
            code="not_stored",
            retry_after=TRY_AGAIN_S,
        )

    @contextmanager
    def _transaction(self, *, soon: bool = False) -> Iterator[None]:
        """Run the block in one transaction; durable on exit.

        With `soon` it does not wait for the disk: the next transaction makes both durable.
        """
        self.check_is_there()
        try:
            self._set_synchronous(wait=not soon)
            with self._connection.begin():
                yield
            self._clear_failure()
        except OperationalError as failed:
            self._failure = str(failed.orig)
            raise Unavailable(
                f"Nothing can be stored now: {failed.orig} ({self._path.name}).",
                hint="What runs goes on. An admin makes room, or makes the file writable again.",
                code="not_stored",
                retry_after=TRY_AGAIN_S,
            ) from failed

    def _set_synchronous(self, *, wait: bool) -> None:
        """Set whether transactions wait for the disk; before each, so that none inherits it."""
        if wait != self._is_synchronous:
            try:
                mode = "FULL" if wait else "NORMAL"
                self._connection.exec_driver_sql(f"PRAGMA synchronous={mode}")
            finally:
                self._connection.rollback()
            self._is_synchronous = wait

    def unhealthy_reason(self) -> str:
        """Return why writes fail; "" if the last one succeeded, or would succeed now.

        It retries, at most every TRY_AGAIN_S: while submissions are refused and nothing happens, no
        other write would show the recovery.
        """
        if (away := self._missing_file_error()) is not None:
            return away.message
        if self._failure and time.monotonic() >= self._retried_at + TRY_AGAIN_S:
            self._retried_at = time.monotonic()
            try:
                with self._connection.begin():
                    self._connection.exec_driver_sql(
                        "UPDATE alembic_version SET version_num = version_num"
                    )
                self._clear_failure()
            except OperationalError as failed:
                self._failure = str(failed.orig)
        if not self._failure:
            self._cut_log()
        return self._failure

    def _rows_version(self) -> int:
        """Return the file's version of rows; 0 in files without one.

        Raises:
            Unavailable: this program only supports older ones.
        """
        found = int(self._connection.exec_driver_sql("PRAGMA user_version").scalar_one())
        self._connection.rollback()
        if found > ROWS:
            raise newer(self._path, f"{LATEST} with rows of the shape {found}")
        return found

    def _clear_failure(self) -> None:
        """Clear the failure, unless the disk is nearly full.

        The log's space left by a large failed write is enough for small ones, but not for the next
        large.
        """
        if self._failure and self._free_bytes() >= MIN_FREE_BYTES:
            self._failure = ""
        if not self._has_ballast:
            self._make_ballast()

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._path.parent).free

    def _make_ballast(self) -> None:
        """Take the ballast's room where there is plenty; without it stops wait for room, too."""
        with suppress(OSError):
            if self._free_bytes() >= BALLAST_PART * BALLAST_BYTES:
                fd = os.open(self._ballast, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(fd, 0, BALLAST_BYTES)
                    self._has_ballast = True
                finally:
                    os.close(fd)

    def _give_up_ballast(self) -> bool:
        """Free a piece of the ballast on a full disk; return False if that is not the trouble."""
        with suppress(OSError):
            size = self._ballast.stat().st_size
            if size and self._free_bytes() < MIN_FREE_BYTES:
                os.truncate(self._ballast, max(0, size - BALLAST_PIECE))
                self._has_ballast = False
                return True
        return False

    def _save_history(self, events: Sequence[tuple[WorkloadId, HistoryEvent]]) -> None:
        lines = [
            {"workload": workload, "at": line.at, "kind": line.kind, "text": line.text}
            for workload, line in events
        ]
        if lines:
            self._connection.execute(insert(history), lines)

    def _save_rows(self, rows: Sequence[WorkloadRecord], *changed: str) -> None:
        """Insert new rows; of known ones replace the `changed` columns, or only the row's."""
        if rows:
            upsert = insert(workloads)
            self._connection.execute(
                upsert.on_conflict_do_update(
                    index_elements=["id"],
                    set_={name: upsert.excluded[name] for name in changed or ("row",)},
                ),
                [
                    {
                        "id": row.id,
                        "spec": _SPEC.dump_json(row.spec).decode(),
                        "row": _ROW.dump_json(row, exclude={"spec", "states"}).decode(),
                    }
                    for row in rows
                ],
            )

    def _save_projects(self, records: Sequence[ProjectRecord]) -> None:
        if records:
            upsert = insert(projects)
            self._connection.execute(
                upsert.on_conflict_do_update(
                    index_elements=["name"], set_={"spec": upsert.excluded.spec}
                ),
                [
                    {
                        "name": record.spec.name,
                        "created": record.created,
                        "spec": _PROJECT.dump_json(record.spec).decode(),
                    }
                    for record in records
                ],
            )


def _identity_of(path: Path) -> tuple[int, int]:
    """Return device and inode of a file."""
    found = path.stat()
    return found.st_dev, found.st_ino


def _set_pragmas(connection: object, _record: object) -> None:
    """Make the writes of a new connection durable (callback of SQLAlchemy)."""
    cursor = connection.cursor()  # type: ignore[attr-defined]  # the driver's own connection
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.close()


def _read_row(spec: str, row: str) -> WorkloadRecord:
    """Parse the two columns of a workload."""
    # Both columns are one value; joining the texts avoids parsing the row twice.
    if not row.startswith("{"):
        raise UnreadableRowError
    return with_scale(_ROW.validate_json(f'{{"spec":{spec},{row[1:]}'))
