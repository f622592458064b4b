"""The accounts of the embedded platform: names, password hashes, admin flags.

One file (0600) that `runai user` changes; logins reload it when it has changed, without a restart.
It also lists removed accounts: the hub closes their tokens and servers, and `add` asks before it
reuses a name. Generated passwords are also in `passwords.txt` (0600), for the machine's owner;
chosen passwords are stored as a hash only.
"""

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from runai.embedded.data_directory import DataDirectory, write_all_private
from runai.hub_service.wire.errors import Conflict, InvalidRequest, NotFound, Unavailable

FIRST_ACCOUNTS = ("admin", "bob", "patty")
SHORTEST_PASSWORD = 10

_NAME = re.compile(r"[a-z0-9]([a-z0-9._@-]{0,61}[a-z0-9])?")
# scrypt parameters of RFC 7914 for logins: 16 MiB and about 50 ms per guess.
_COST, _BLOCK, _PARALLEL, _SALT_BYTES, _HASH_BYTES = 2**14, 8, 1, 16, 32
_GENERATED_BYTES = 15  # 120 bits
_HASH = re.compile(
    r"scrypt\$([2-9]|[1-9]\d{1,6})\$([1-9]\d?)\$([1-9])\$((?:[0-9a-f]{2}){8,64})\$((?:[0-9a-f]{2}){32})"
)
_MAX_WORK = 2**20
"""Maximum of cost times block: 128 MiB."""


@dataclass(frozen=True, slots=True)
class Account:
    """One account; `hashed` is `scrypt$cost$block$parallel$salt$hash`, hexadecimal."""

    name: str
    hashed: str
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Removal:
    """The removal of an account: its time, and whether the hub has completed it."""

    at: str
    ended: bool = False


@dataclass(slots=True)
class _Stored:
    """The content of the file."""

    accounts: dict[str, Account] = field(default_factory=dict)
    removed: dict[str, Removal] = field(default_factory=dict)
    passwords: dict[str, str | None] = field(default_factory=dict)
    """Changes of `passwords.txt`: generated passwords by name; None: the line goes."""


class Accounts:
    """The accounts of one data directory. Safe to use from several processes."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._cached: tuple[tuple[int, int], _Stored] | None = None

    def all(self) -> Mapping[str, Account]:
        """Return the accounts by name; reload the file if it has changed."""
        return self._read_accounts().accounts

    def pending_removals(self) -> Mapping[str, Removal]:
        """Return the incomplete removals by name."""
        removed = self._read_accounts().removed.items()
        return {name: removal for name, removal in removed if not removal.ended}

    def is_back(self, name: str) -> bool:
        """Return True if a removed name has an account again."""
        return name in self.all()

    def check(self, name: str, password: str) -> Account | None:
        """Return the account if the password is right; unknown names take the same time."""
        account = self.all().get(name)
        is_right = _matches(password, account.hashed if account else _DUMMY_HASH)
        return account if account and is_right else None

    def make_first(self) -> dict[str, str]:
        """Create the first accounts and return their passwords; {} if accounts exist."""
        with self._changing() as stored:
            if stored.accounts or stored.removed:
                return {}
            passwords = {name: generate_password() for name in FIRST_ACCOUNTS}
            for name, password in passwords.items():
                stored.accounts[name] = Account(name, _hash(password), admin=name == "admin")
            stored.passwords.update(passwords)
        return passwords

    def add(
        self,
        name: str,
        password: str | None = None,
        *,
        admin: bool = False,
        same_person: bool = False,
    ) -> str:
        """Create an account; return its password (generated if None).

        Raises:
            InvalidRequest: the name is not valid or the password too short.
            Conflict: the name is taken, or a removed account had it and `same_person` is False.
        """
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"{name!r} cannot be a user name.",
                hint="Use lower-case letters, digits and . _ @ - inside, at most 63.",
            )
        with self._changing() as stored:
            if name in stored.accounts:
                raise Conflict(
                    f"There is a user {name} already.",
                    hint=f"`runai user passwd {name}` sets a new password.",
                )
            if name in stored.removed and not same_person:
                raise Conflict(
                    f"There was a user {name} before: that person's files, jobs and project"
                    " memberships are still there.",
                    hint="The same person gets all of them back with --same-person. For another"
                    " person choose another name.",
                    code="name_was_used",
                )
            new_password = self._store_password(stored, name, password, admin=admin)
            if name in stored.removed and stored.removed[name].ended:
                del stored.removed[name]  # else the hub still has to end old logins
            return new_password

    def set_password(self, name: str, password: str | None = None) -> str:
        """Replace a password; return the new one (generated if None).

        Raises:
            InvalidRequest: the password is too short.
            NotFound: there is no such user.
        """
        with self._changing() as stored:
            account = self._require(stored.accounts, name)
            return self._store_password(stored, name, password, admin=account.admin)

    def remove(self, name: str) -> None:
        """Delete an account, and record its removal for the hub to complete.

        Raises:
            NotFound: there is no such user.
        """
        with self._changing() as stored:
            del stored.accounts[self._require(stored.accounts, name).name]
            stored.removed[name] = Removal(datetime.now(UTC).isoformat())
            stored.passwords[name] = None

    def record_completed(self, name: str, removal: Removal) -> None:
        """Record that the hub completed an account's removal.

        Does nothing if the account was removed again meanwhile.
        """
        with self._changing() as stored:
            if stored.removed.get(name) != removal:  # removed again meanwhile
                return
            if name in stored.accounts:
                del stored.removed[name]
            else:
                stored.removed[name] = replace(removal, ended=True)

    # -- files -----------------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return self._directory.accounts

    def _read_accounts(self) -> _Stored:
        """Return the file's content; read it only if it has changed."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return _Stored()
        except OSError as failed:
            raise _unreadable(self._path, failed) from failed
        version = (status.st_mtime_ns, status.st_ino)
        if self._cached is None or self._cached[0] != version:
            self._cached = version, _parse(self._path)
        return self._cached[1]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_Stored]:
        """Lock the file and yield its content; write changes back unless the body fails.

        Raises:
            Unavailable: the disk is full, or a file belongs to another account; nothing changed.
        """
        lock = -1
        try:
            lock = os.open(self._directory.secrets / "accounts.lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            stored = _parse(self._path) if self._path.exists() else _Stored()
            old_text = _file_text(stored)
            yield stored
            texts = {}
            if stored.passwords:
                texts[self._directory.passwords] = self._passwords_text(stored.passwords)
            if (text := _file_text(stored)) != old_text:
                texts[self._path] = text
            write_all_private(texts)
        except OSError as failed:
            raise Unavailable(
                f"The accounts in {self._directory.secrets} could not be changed:"
                f" {failed.strerror}. They are as they were.",
                hint="Is there room on the disk, and do the files belong to the account of"
                " `runai up`? `runai doctor` names them.",
                code="not_stored",
            ) from failed
        finally:
            if lock >= 0:
                os.close(lock)

    def _store_password(
        self, stored: _Stored, name: str, password: str | None, *, admin: bool
    ) -> str:
        """Set an account's password; return it (generated if None).

        Raises:
            InvalidRequest: it is too short.
        """
        if password is not None and len(password) < SHORTEST_PASSWORD:
            raise InvalidRequest(
                f"A password of {len(password)} characters is too short.",
                hint=f"Use at least {SHORTEST_PASSWORD}, or let one be generated.",
            )
        new_password = password or generate_password()
        stored.accounts[name] = Account(name, _hash(new_password), admin=admin)
        stored.passwords[name] = None if password else new_password
        return new_password

    @staticmethod
    def _require(accounts: Mapping[str, Account], name: str) -> Account:
        if name not in accounts:
            raise NotFound(
                f"There is no user {name}.", hint=f"There is: {', '.join(sorted(accounts))}."
            )
        return accounts[name]

    def _passwords_text(self, changes: Mapping[str, str | None]) -> str:
        """Return the text of `passwords.txt` with these changes, one `name password` per line."""
        path = self._directory.passwords
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        unchanged = [line for line in lines if line.strip() and line.split()[0] not in changes]
        new = [f"{name} {password}" for name, password in changes.items() if password]
        return "".join(f"{line}\n" for line in (*unchanged, *new))


def generate_password() -> str:
    """Return a password of 120 random bits that needs no quoting anywhere.

    >>> len(generate_password())
    20
    """
    return secrets.token_urlsafe(_GENERATED_BYTES)


def _hash(password: str, salt: bytes | None = None) -> str:
    salt = salt or secrets.token_bytes(_SALT_BYTES)
    digest = _scrypt(password, salt, _COST, _BLOCK, _PARALLEL)
    return f"scrypt${_COST}${_BLOCK}${_PARALLEL}${salt.hex()}${digest.hex()}"


def _matches(password: str, hashed: str) -> bool:
    cost, block, parallel, salt, digest = _hash_parts(hashed)
    computed = _scrypt(password, bytes.fromhex(salt), int(cost), int(block), int(parallel))
    return hmac.compare_digest(computed, bytes.fromhex(digest))


def _hash_parts(hashed: str) -> Sequence[str]:
    """Return cost, block, parallel, salt and digest of a hash.

    Raises:
        ValueError: it is malformed, or too expensive to check.
    """
    parts = _HASH.fullmatch(hashed)
    if parts is None or int(parts[1]).bit_count() != 1 or int(parts[1]) * int(parts[2]) > _MAX_WORK:
        raise ValueError("it is no hash of a password")
    return parts.groups()


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=cost,
        r=block,
        p=parallel,
        dklen=_HASH_BYTES,
        maxmem=256 * cost * block,
    )


_DUMMY_HASH = f"scrypt${_COST}${_BLOCK}${_PARALLEL}${'00' * _SALT_BYTES}${'00' * _HASH_BYTES}"


def _parse(path: Path) -> _Stored:
    """Return the content of the accounts' file.

    Raises:
        Unavailable: it cannot be read.
        InvalidRequest: it is damaged.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        accounts = {
            name: Account(name, _checked_hash(entry), admin=bool(entry["admin"]))
            for name, entry in stored["accounts"].items()
        }
        removed = stored.get("removed", {}).items()
        return _Stored(
            accounts,
            {
                name: Removal(str(entry["at"]), ended=bool(entry["ended"]))
                for name, entry in removed
            },
        )
    except OSError as failed:
        raise _unreadable(path, failed) from failed
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as wrong:
        raise InvalidRequest(
            f"{path} is damaged.",
            hint="Restore it, or move it away: the next start makes new accounts.",
        ) from wrong


def _unreadable(path: Path, failed: OSError) -> Unavailable:
    return Unavailable(
        f"The accounts cannot be read: {failed.strerror} ({path}).",
        hint="Do they belong to the account of `runai up`? `runai doctor` says how to mend it.",
        code="accounts_unreadable",
    )


def _checked_hash(entry: Mapping[str, str]) -> str:
    """Return an account's stored hash.

    Raises:
        ValueError: it is malformed, or too expensive to check.
    """
    _hash_parts(entry["hashed"])
    return entry["hashed"]


def _file_text(stored: _Stored) -> str:
    accounts = {
        name: {"hashed": account.hashed, "admin": account.admin}
        for name, account in sorted(stored.accounts.items())
    }
    removed = {name: asdict(removal) for name, removal in sorted(stored.removed.items())}
    content = {"version": 1, "accounts": accounts, "removed": removed}
    return json.dumps(content, indent=2) + "\n"
