"""File of each Unix account that the platform has met: the uid by which a name is known.

The first uid of a name stays until an admin says that another uid is the same person. The rest of a
file is the last answer of the account directory, for times without one. Hub, service and `runai
user` write the files, all as root; each write replaces a file as a whole.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from runai.hub_service.processes.user_account import UnixAccount, home_name
from runai.hub_service.wire.errors import Unavailable

LOG = logging.getLogger("runai.service")

KNOWN_ACCOUNTS = "secrets/known_accounts"
"""Folder in the data directory, which backups have."""
FORGET = "forget"
"""Folder therein: a file for each name that is to be forgotten."""


@dataclass(frozen=True, slots=True)
class KnownAccount:
    """What the platform knows of a name."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str = "/bin/sh"
    groups: tuple[int, ...] = ()
    directory_groups: tuple[int, ...] = ()
    """Groups that are not in /etc/group."""
    local: bool = False
    """True if /etc/passwd had the account at the last lookup."""
    former_uids: tuple[int, ...] = ()
    """Uids that an admin said to be the same person."""
    umask: str = ""
    """The umask of its login, in three octal digits; "": not known."""

    def account(self) -> UnixAccount:
        """Return the account for processes."""
        home = Path(self.home)
        return UnixAccount(self.name, home, self.uid, self.gid, self.shell, self.groups, self.umask)

    def is_of(self, uid: int) -> bool:
        """Return True if a uid is, or was, this person's."""
        return uid == self.uid or uid in self.former_uids


class KnownAccounts:
    """The files of one data directory."""

    def __init__(self, data_dir: Path | None) -> None:
        """Set the folder, which is made with the first file; None: nothing is kept."""
        self._folder = None if data_dir is None else data_dir / KNOWN_ACCOUNTS
        self._cache: dict[str, tuple[tuple[int, int], KnownAccount]] = {}

    def get(self, name: str) -> KnownAccount | None:
        """Return the known account of a name; None if the platform never met one.

        Raises:
            Unavailable: the file cannot be read.
        """
        if (path := self._path(name)) is None:
            return None
        with self._readable(path):
            try:
                status = path.stat()
            except FileNotFoundError:
                self._cache.pop(name, None)
                return None
            stamp = (status.st_mtime_ns, status.st_ino)
            cached = self._cache.get(name)
            if cached is None or cached[0] != stamp:
                now = _parse(path.read_bytes())
                if cached is not None and (was := cached[1].uid) != now.uid and now.is_of(was):
                    LOG.info("%s has uid %d now, was %d: the same person.", name, now.uid, was)
                cached = self._cache[name] = stamp, now
        return cached[1]

    def all(self) -> Iterator[KnownAccount]:
        """Yield all known accounts."""
        for path in sorted(self._folder.glob("*.json")) if self._folder is not None else ():
            with self._readable(path), suppress(FileNotFoundError):
                yield _parse(path.read_bytes())

    def register(self, now: KnownAccount) -> KnownAccount:
        """Return the known account of a looked-up name: at the first time, the given one.

        With the known uid, the rest of the new answer is kept.

        Raises:
            Unavailable: nothing can be written.
        """
        if self._folder is None:
            return now
        known = self.get(now.name)
        if known is None:
            self._write(now, is_first=True)
            known = self.get(now.name) or now  # another process may have been the first
        if known.uid == now.uid and (now := replace(now, former_uids=known.former_uids)) != known:
            self._write(now)
            return now
        return known

    def take_uid(self, name: str, uid: int) -> None:
        """Record that a name is the same person with this uid as with the known one."""
        if (known := self.get(name)) is not None and known.uid != uid:
            former = tuple(dict.fromkeys(u for u in (*known.former_uids, known.uid) if u != uid))
            self._write(replace(known, uid=uid, former_uids=former))

    def request_forget(self, name: str) -> None:
        """Start nothing under a name any more, until the hub has ended what its person has.

        Raises:
            Unavailable: nothing can be written.
        """
        if (path := self._path(name, FORGET)) is not None:
            self._store(path, {"name": name})

    def is_being_forgotten(self, name: str) -> bool:
        """Return True from `request_forget` to `forget`."""
        path = self._path(name, FORGET)
        return path is not None and path.exists()

    def being_forgotten(self) -> list[str]:
        """Return the names that are to be forgotten.

        Raises:
            Unavailable: a file cannot be read.
        """
        found: list[str] = []
        folder = self._folder
        for path in sorted((folder / FORGET).glob("*.json")) if folder is not None else ():
            with self._readable(path), suppress(FileNotFoundError):
                found.append(json.loads(path.read_bytes())["name"])
        return found

    def forget(self, name: str) -> None:
        """Remove a name's files: the next account of that name is a new person."""
        for path in (self._path(name), self._path(name, FORGET)):
            if path is not None:
                path.unlink(missing_ok=True)

    def _path(self, name: str, folder: str = "") -> Path | None:
        return None if self._folder is None else self._folder / folder / f"{home_name(name)}.json"

    def _write(self, known: KnownAccount, *, is_first: bool = False) -> None:
        path = self._path(known.name)
        assert path is not None
        self._store(path, asdict(known), is_first=is_first)

    def _store(self, path: Path, content: Mapping[str, Any], *, is_first: bool = False) -> None:
        """Write a file atomically; with `is_first` an existing one stays."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file, new = mkstemp(dir=path.parent, prefix=".")
            try:
                with os.fdopen(file, "w", encoding="utf-8") as stream:
                    json.dump(content, stream)
                if is_first:
                    with suppress(FileExistsError):
                        os.link(new, path)
                else:
                    Path(new).replace(path)
            finally:
                Path(new).unlink(missing_ok=True)
        except OSError as failed:
            raise _storage_error(path, failed) from failed

    @contextmanager
    def _readable(self, path: Path) -> Iterator[None]:
        """Raise Unavailable if the block cannot read a file that exists."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ValueError, TypeError, KeyError) as failed:
            raise _storage_error(path, failed) from failed


def _parse(text: bytes) -> KnownAccount:
    fields = json.loads(text)
    return KnownAccount(
        **fields | {name: tuple(fields[name]) for name in fields if isinstance(fields[name], list)}
    )


def _storage_error(path: Path, failed: Exception) -> Unavailable:
    why = failed.strerror if isinstance(failed, OSError) else "it is damaged"
    return Unavailable(
        f"The known uid of an account cannot be read or written: {why} ({path}).",
        hint="An admin makes room, or restores the file from a backup.",
        code="not_stored",
        retry_after=10.0,
    )
