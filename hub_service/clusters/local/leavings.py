"""What workloads leave behind on this machine's disk when they are forgotten.

Knows which of it is its user's work and stays, and that a million files must hold nobody up. Owned
by `cluster`, which says whose it is.
"""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

from runai.hub_service.clusters.local.account import Account
from runai.hub_service.errors import Unavailable

__all__ = ["Leavings"]

TRY_AGAIN_S = 10.0


class Leavings:
    """The directories of workloads that are there no more."""

    def __init__(self, jobs_dir: Path) -> None:
        """Begin without anything to remove; `jobs_dir` has the directories of all jobs."""
        self._trash = jobs_dir / ".trash"
        self._kept = jobs_dir / ".kept"
        self._wanted: asyncio.Queue[tuple[tuple[str, ...], Account | None]] = asyncio.Queue()
        """Commands, and as whom they run in a user's own home."""

    async def run(self) -> NoReturn:
        """Remove in the background, until cancelled, also what an earlier service has left."""
        for path in self._trash.glob("*"):
            self._remove(path)
        while True:
            command, account = await self._wanted.get()
            # As the user, where it is at their home: there a name may be a link to anything.
            owner = {} if account is None else _owned_by(account)
            # A program of its own: to list a million files takes memory that is then the service's
            # for good, and who stops it would wait. What it leaves is removed by the next.
            removal = await asyncio.create_subprocess_exec(
                *command, cwd="/", env=_environment(), **owner
            )
            try:
                await removal.wait()
            finally:
                if removal.returncode is None:
                    removal.kill()
                    await removal.wait()

    def remove(self, path: Path) -> None:
        """Put a directory aside, so that its name is free at once, and have it removed.

        Raises:
            Unavailable: it cannot be moved now.
        """
        if path.exists():
            aside = self._trash / uuid4().hex
            _move(path, aside)
            self._remove(aside)

    def keep(self, path: Path, name: str) -> None:
        """Put a directory aside under this name for good, if anything is in it.

        Raises:
            Unavailable: it cannot be moved now.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if any(True for _ in path.iterdir()):
                _move(path, self._kept / name)

    def remove_at_home(self, path: Path, account: Account) -> None:
        """Remove a directory at a user's home."""
        self._wanted.put_nowait((("rm", "-rf", "--", str(path)), account))

    def clear_at_home(self, path: Path, account: Account) -> None:
        """Remove the program and the empty directories of one at a user's home."""
        what = ("(", "-name", "source.py", "-o", "-type", "d", "-empty", ")", "-delete")
        self._wanted.put_nowait((("find", str(path), "-maxdepth", "1", "-depth", *what), account))

    def _remove(self, path: Path) -> None:
        self._wanted.put_nowait((("rm", "-rf", "--", str(path)), None))


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
