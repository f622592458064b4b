"""What workloads leave behind on this machine's disk when they are forgotten.

Knows which of it is its user's work and stays, that nothing may be gone of what is then still
listed, and that a million files must hold nobody up. Owned by `cluster`, which says whose it is.
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
from runai.hub_service.processes.user_account import Account
from runai.hub_service.wire.errors import Unavailable

LOG = logging.getLogger("runai.leavings")

CHECKPOINTS = "checkpoints"
TRY_AGAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Leaving:
    """A workload that is to be forgotten; its name and when it was submitted tell it for good."""

    workload: WorkloadId
    submitted: float
    aged: bool
    """Nobody has asked for it, so its checkpoints stay."""

    def folder(self) -> str:
        """Return a name for its directory, unlike any other's, in which all of this stands."""
        project, _, name = self.workload.partition("/")  # both DNS labels
        why = "aged" if self.aged else "asked"
        return f"{project}+{name}+{self.submitted!r}+{why}+{uuid4().hex}"

    @classmethod
    def of(cls, folder: str) -> Self | None:
        """Read it from such a name; None: it is another."""
        try:
            project, name, submitted, why, _ = folder.split("+")
            return cls(f"{project}/{name}", float(submitted), why == "aged")
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class AtHome:
    """The directory of a workload at a user's home, and as whom it is removed."""

    path: Path
    account: Account


class Leavings:
    """The directories of workloads that are there no more."""

    def __init__(self, jobs_dir: Path) -> None:
        """Begin without anything to remove; `jobs_dir` has the directories of all jobs."""
        self._jobs = jobs_dir
        self._leaving = jobs_dir / ".leaving"
        """Out of their places, of workloads that may still be there."""
        self._trash = jobs_dir / ".trash"
        self._kept = jobs_dir / ".kept"
        self._wanted: asyncio.Queue[tuple[tuple[str, ...], Account | None]] = asyncio.Queue()
        """Commands, and as whom they run in a user's own home."""

    async def run(self) -> NoReturn:
        """Remove in the background, until cancelled, also what an earlier service has left."""
        for path in self._trash.glob("*"):
            leaving = Leaving.of(path.name)
            aged = leaving is None or leaving.aged
            self._remove(path, _home_of(path) if leaving is not None else None, aged=aged)
        while True:
            command, account = await self._wanted.get()
            removal = await _started(command, account)
            try:
                await removal.wait()
            finally:
                if removal.returncode is None:
                    removal.kill()
                    await removal.wait()

    @contextlib.contextmanager
    def going(self, leaving: Leaving, at_home: AtHome | None) -> Iterator[None]:
        """Have its directory out of its place, and removed once the block has made that durable.

        It is back if the block fails; if we are killed in it, `settle` knows what was meant.

        Raises:
            Unavailable: it cannot be moved now.
        """
        place, aside = self._jobs / leaving.workload, self._leaving / leaving.folder()
        is_there = place.exists()
        if is_there:
            _move(place, aside)
        try:
            yield
        except BaseException:
            if is_there:
                self._move_later(aside, place)
            raise
        if is_there:
            if (gone := self._put_away(aside, leaving)) is not None:
                self._remove(gone, at_home, aged=leaving.aged)
        elif at_home is not None:
            self._remove_at_home(at_home, aged=leaving.aged)

    def settle(self, is_there: Callable[[WorkloadId, float], bool]) -> None:
        """Finish what an earlier service was killed in: it is put back, or `run` removes it.

        `is_there` tells of a name and of when it was submitted whether there is such a workload.
        """
        for aside in self._leaving.glob("*"):
            if (leaving := Leaving.of(aside.name)) is None:
                continue
            place = self._jobs / leaving.workload
            if not is_there(leaving.workload, leaving.submitted):
                self._put_away(aside, leaving)
            elif not place.exists():
                self._move_later(aside, place)

    def _put_away(self, aside: Path, leaving: Leaving) -> Path | None:
        """Put what is to be kept of a directory aside, and return where the rest can be removed."""
        gone = self._trash / aside.name
        if leaving.aged:
            name = f"{leaving.workload}-{int(leaving.submitted)}"
            if not self._keep(aside / CHECKPOINTS, self._kept / name):
                return None
        return gone if self._move_later(aside, gone) else None

    def _keep(self, path: Path, aside: Path) -> bool:
        """Put a directory aside for good, if anything is in it; tell whether it is so."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if any(True for _ in path.iterdir()):
                return self._move_later(path, aside)
        return True

    def _move_later(self, path: Path, aside: Path) -> bool:
        """Move a directory, now or when the next service settles it; tell whether it was now."""
        try:
            _move(path, aside)
        except Unavailable as away:
            LOG.warning("It is tried again at the next start: %s", away.message)
            return False
        return True

    def _remove(self, path: Path, at_home: AtHome | None, *, aged: bool) -> None:
        # In this order: what is at home is known from what is here, should we be killed.
        if at_home is not None:
            self._remove_at_home(at_home, aged=aged)
        self._wanted.put_nowait((("rm", "-rf", "--", str(path)), None))

    def _remove_at_home(self, at_home: AtHome, *, aged: bool) -> None:
        """Remove a directory at a user's home; of one that is aged the program, and if empty."""
        command: tuple[str, ...] = ("rm", "-rf", "--", str(at_home.path))
        if aged:
            what = ("(", "-name", "source.py", "-o", "-type", "d", "-empty", ")", "-delete")
            command = ("find", str(at_home.path), "-maxdepth", "1", "-depth", *what)
        self._wanted.put_nowait((command, at_home.account))


def _home_of(folder: Path) -> AtHome | None:
    """Return what a workload has at its user's home, from what one of its supervisors was told."""
    with contextlib.suppress(OSError, ValueError, LookupError):
        told = json.loads(next(folder.glob("attempt-*/worker-*/spec.json"), folder).read_bytes())
        if told["uid"] is not None and told["own_directory"]:
            account = Account(told["user"], Path("/"), told["uid"], told["gid"])
            return AtHome(Path(told["own_directory"]), account)
    return None


async def _started(command: Sequence[str], account: Account | None) -> asyncio.subprocess.Process:
    """Start a removal, when the machine has a process for it.

    A program of its own: to list a million files takes memory that is then the service's for good,
    and who stops it would wait. What it leaves is removed by the next.
    """
    # As the user, where it is at their home: there a name may be a link to anything.
    owner = {} if account is None else _owned_by(account)
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
    """Return what a removal begins with: who it runs as may read it, and ours holds secrets."""
    return {"PATH": os.environ.get("PATH", os.defpath)}


def _owned_by(account: Account) -> dict[str, Any]:
    """Return how a program becomes a user's, who may hold it up and do with it as they like."""
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.DEVNULL)
    who: dict[str, Any] = {"user": account.uid, "group": account.gid, "extra_groups": []}
    return {**who, **nothing, "start_new_session": True}  # nor our terminal is theirs


def _move(path: Path, aside: Path) -> None:
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
