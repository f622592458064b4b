"""Cleanup of job directories of deleted workloads.

Users' work (checkpoints of aged workloads) stays. A directory is removed only once the deletion is
durable, and in a program of its own, since removing a million files would block the service.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self
from uuid import uuid4

from runai.hub_service.clusters.local.supervisor.worker_start import NOT_NOW
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.processes.user_account import UnixAccount
from runai.hub_service.wire.errors import Unavailable

LOG = logging.getLogger("runai.cleanup")

CHECKPOINTS = "checkpoints"
TRY_AGAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class DeletedWorkload:
    """A workload to be deleted, identified by name and submission time."""

    workload: WorkloadId
    submitted: float
    aged: bool
    """True if retention deletes it, not a user: then its checkpoints stay."""
    skips_home: bool = False
    """True if nothing is removed in its user's home."""

    def folder(self) -> str:
        """Return a unique directory name that encodes all fields."""
        project, _, name = self.workload.partition("/")  # both DNS labels
        why = ("aged" if self.aged else "asked") + ("-here" if self.skips_home else "")
        return f"{project}+{name}+{self.submitted!r}+{why}+{uuid4().hex}"

    @classmethod
    def of(cls, folder: str) -> Self | None:
        """Parse such a name; None if it is another."""
        try:
            project, name, submitted, why, _ = folder.split("+")
            why, _, suffix = why.partition("-")
            return cls(f"{project}/{name}", float(submitted), why == "aged", suffix == "here")
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class HomeJobDir:
    """Directory of a workload in a user's home, with the account that removes it."""

    path: Path
    account: UnixAccount


class JobDirCleanup:
    """Job directories on their way to removal."""

    def __init__(self, jobs_dir: Path) -> None:
        """Start without removals; `jobs_dir` has the directories of all jobs.

        The folders are made now: on a full disk only the removals make room.
        """
        self._jobs = jobs_dir
        self._pending = jobs_dir / ".leaving"
        """Moved directories of workloads that may still exist."""
        self._trash = jobs_dir / ".trash"
        self._preserved = jobs_dir / ".kept"
        self._removals: asyncio.Queue[tuple[tuple[str, ...], UnixAccount | None]] = asyncio.Queue()
        """Commands, with the account if they run in a user's home."""
        for folder in (self._pending, self._trash):
            with contextlib.suppress(OSError):  # made again when it is needed
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def run(self) -> NoReturn:
        """Remove directories in the background until cancelled; start with an earlier service's."""
        for path in await self._wait_for_trash():
            deleted = DeletedWorkload.of(path.name)
            aged = deleted is None or deleted.aged
            home_dir = None if deleted is None or deleted.skips_home else _home_of(path)
            self._enqueue_removal(path, home_dir, aged=aged)
        while True:
            command, account = await self._removals.get()
            removal = await _start_removal(command, account)
            try:
                await removal.wait()
            finally:
                if removal.returncode is None:
                    removal.kill()
                    await removal.wait()

    async def _wait_for_trash(self) -> Sequence[Path]:
        """Return what an earlier service left in the trash, as soon as it can be listed."""
        while True:
            try:
                return list(self._trash.glob("*"))
            except OSError as failed:
                if failed.errno not in NOT_NOW:
                    raise
            await asyncio.sleep(TRY_AGAIN_S)

    @contextlib.contextmanager
    def removal(self, deleted: DeletedWorkload, home_dir: HomeJobDir | None) -> Iterator[None]:
        """Move the directory aside, and remove it once the block has made the deletion durable.

        It is moved back if the block fails; after a crash, `settle` finishes or reverts the move.

        Raises:
            Unavailable: the directory cannot be moved now.
        """
        job_dir, aside = self._jobs / deleted.workload, self._pending / deleted.folder()
        is_there = job_dir.exists()
        if is_there:
            _move(job_dir, aside)
        try:
            yield
        except BaseException:
            if is_there:
                self._move_later(aside, job_dir)
            raise
        if is_there:
            if (trashed := self._move_to_trash(aside, deleted)) is not None:
                self._enqueue_removal(trashed, home_dir, aged=deleted.aged)
        elif home_dir is not None:
            self._enqueue_home_removal(home_dir, aged=deleted.aged)

    def settle(self, is_there: Callable[[WorkloadId, float], bool]) -> None:
        """Revert or finish moves that a crash interrupted.

        `is_there` returns True if a workload of that name and submission time exists.
        """
        for aside in self._pending.glob("*"):
            if (deleted := DeletedWorkload.of(aside.name)) is None:
                continue
            job_dir = self._jobs / deleted.workload
            if not is_there(deleted.workload, deleted.submitted):
                self._move_to_trash(aside, deleted)
            elif not job_dir.exists():
                self._move_later(aside, job_dir)

    def _move_to_trash(self, aside: Path, deleted: DeletedWorkload) -> Path | None:
        """Move checkpoints that stay, and return the path of the rest for removal."""
        trashed = self._trash / aside.name
        if deleted.aged:
            name = f"{deleted.workload}-{int(deleted.submitted)}"
            if not self._preserve(aside / CHECKPOINTS, self._preserved / name):
                return None
        return trashed if self._move_later(aside, trashed) else None

    def _preserve(self, path: Path, aside: Path) -> bool:
        """Move a directory to its permanent place unless it is empty; return False on failure."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if any(True for _ in path.iterdir()):
                return self._move_later(path, aside)
        return True

    def _move_later(self, path: Path, aside: Path) -> bool:
        """Move a directory; on failure return False, the next service's `settle` retries."""
        try:
            _move(path, aside)
        except Unavailable as away:
            LOG.warning("The next start tries again: %s", away.message)
            return False
        return True

    def _enqueue_removal(self, path: Path, home_dir: HomeJobDir | None, *, aged: bool) -> None:
        """Enqueue the removals of a directory, and before it of the one in its user's home."""
        # The home first: after a crash, the files here still name the directory there.
        if home_dir is not None:
            self._enqueue_home_removal(home_dir, aged=aged)
        self._removals.put_nowait((("rm", "-rf", "--", str(path)), None))

    def _enqueue_home_removal(self, home_dir: HomeJobDir, *, aged: bool) -> None:
        """Enqueue the removal of a directory in a home; if aged, of program and empty folders."""
        command: tuple[str, ...] = ("rm", "-rf", "--", str(home_dir.path))
        if aged:
            criteria = ("(", "-name", "source.py", "-o", "-type", "d", "-empty", ")", "-delete")
            command = ("find", str(home_dir.path), "-maxdepth", "1", "-depth", *criteria)
        self._removals.put_nowait((command, home_dir.account))


def _home_of(folder: Path) -> HomeJobDir | None:
    """Return a workload's directory in its user's home, from a supervisor's instructions."""
    with contextlib.suppress(OSError, ValueError, LookupError):
        instructions = json.loads(
            next(folder.glob("attempt-*/worker-*/spec.json"), folder).read_bytes()
        )
        if instructions["uid"] is not None and instructions["own_directory"]:
            account = UnixAccount(
                instructions["user"], Path("/"), instructions["uid"], instructions["gid"]
            )
            return HomeJobDir(Path(instructions["own_directory"]), account)
    return None


async def _start_removal(
    command: Sequence[str], account: UnixAccount | None
) -> asyncio.subprocess.Process:
    """Start a removal, as soon as the machine has a process for it.

    A program of its own: listing a million files would take memory that the service never returns,
    and delay its end. The next service finishes an interrupted removal.
    """
    # As the user in their home: a name there may be a link to anything.
    owner = {} if account is None else _run_as(account)
    while True:
        try:
            return await asyncio.create_subprocess_exec(
                *command, cwd="/", env=_environment(), **owner
            )
        except OSError as failed:
            if failed.errno not in NOT_NOW:
                raise
        await asyncio.sleep(TRY_AGAIN_S)


def _environment() -> dict[str, str]:
    """Return a removal's environment: its account may read it, and the service's has secrets."""
    return {"PATH": os.environ.get("PATH", os.defpath)}


def _run_as(account: UnixAccount) -> dict[str, Any]:
    """Return the arguments that start a program as a user, isolated from the service."""
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.DEVNULL)
    identity: dict[str, Any] = {"user": account.uid, "group": account.gid, "extra_groups": []}
    return {**identity, **streams, "start_new_session": True}  # no shared terminal either


def _move(path: Path, aside: Path) -> None:
    """Move a directory, and make the folder for it; raise Unavailable on failure."""
    try:
        aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.rename(aside)
    except OSError as failed:
        raise Unavailable(
            f"{path} cannot be put aside now: {failed.strerror}.",
            hint="An admin makes room, or makes the data directory writable again.",
            code="not_stored",
            retry_after=TRY_AGAIN_S,
        ) from failed
