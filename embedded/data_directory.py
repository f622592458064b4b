"""The data directory of the embedded platform: paths, permissions, secrets, and its lock.

One platform runs on a directory at a time: the kernel releases the lock with the hub's process, so
there are no stale pid files.
"""

import contextlib
import fcntl
import os
import pwd
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runai.embedded.proxy.public_address import MOST_PORT
from runai.hub_service.clusters.local.store.cluster_lock import HUB_LOCK, HUB_TOKEN
from runai.hub_service.processes.ports import later_port, port_is_free
from runai.hub_service.wire.errors import Conflict, Forbidden, InvalidRequest

_SECRET_BYTES = 32
_GROUP_OR_OTHER_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """The paths below one data directory."""

    root: Path

    @property
    def secrets(self) -> Path:
        """Return the folder of secrets (0700)."""
        return self.root / "secrets"

    @property
    def passwords(self) -> Path:
        """Return the file of generated passwords, readable by the directory's owner."""
        return self.secrets / "passwords.txt"

    @property
    def accounts(self) -> Path:
        """Return the file of password hashes."""
        return self.secrets / "accounts.json"

    @property
    def cookie_secret(self) -> Path:
        """Return the file of JupyterHub's cookie secret: browsers stay logged in over restarts."""
        return self.secrets / "cookie_secret"

    @property
    def own_config(self) -> Path:
        """Return the admin's own JupyterHub configuration, which overrides ours."""
        return self.root / "jupyterhub_config.py"

    @property
    def hub_log(self) -> Path:
        """Return the log of JupyterHub and its child processes."""
        return self.root / "hub.log"

    @property
    def last_start(self) -> Path:
        """Return what the last start found in the admin's own configuration (JSON)."""
        return self.root / "last_start.json"

    @property
    def proxy(self) -> Path:
        """Return the folder of the proxy's routes and its socket."""
        return self.root / "proxy"

    @property
    def certificates(self) -> Path:
        """Return the folder of the proxy's certificates and keys; backups include it."""
        return self.secrets / "certificates"

    @property
    def authority(self) -> Path:
        """Return the certificate of the proxy's own authority, for browsers and `runai login`."""
        return self.root / "ca.crt"

    @property
    def users(self) -> Path:
        """Return the folder of the users' homes (without --system-users)."""
        return self.root / "users"

    @property
    def is_of_system_users(self) -> bool:
        """Return True if it was prepared for --system-users: their processes traverse it."""
        return bool(self.root.stat().st_mode & stat.S_IXOTH)

    def prepare(self, *, system_users: bool) -> None:
        """Create the directory and its secrets; keep existing files, and reset permissions.

        Raises:
            InvalidRequest: it cannot be created or written.
        """
        try:
            for folder in (self.root, self.secrets, self.users):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                # Jobs run as their users, and traverse the root to their own folders; some run
                # since an earlier start, so it is closed for no instant.
                folder.chmod(0o711 if system_users and folder == self.root else 0o700)
            for path in (self.cookie_secret, self.root / HUB_TOKEN):
                if not path.exists():
                    write_private(path, secrets.token_hex(_SECRET_BYTES))
                path.chmod(0o600)
            if self.own_config.exists():
                self.own_config.chmod(0o600)  # other authenticators' secrets are in there
        except OSError as wrong:
            raise self._unusable(wrong) from wrong

    def restrict_permissions(self) -> list[Path]:
        """Ensure that only this account and root can write the directory; return the changed paths.

        Each file counts: settings and Python modules in it are executed, and its databases define
        which programs run. Group and other write permissions are removed. Root removes them only
        from an empty directory: another one may already contain a planted file.

        Raises:
            Forbidden: a file belongs to another account, or another account could write it.
            InvalidRequest: the directory cannot be read.
        """
        try:
            if not self.root.exists():
                return []
            # The directory first: no other account can add files from then on.
            closed = _remove_write_permission(self.root)
            for path in (*self.root.iterdir(), *self.secrets.glob("*")):
                closed += _remove_write_permission(path)
        except OSError as wrong:
            raise self._unusable(wrong) from wrong
        return closed

    def check_is_ours(self, command: str) -> None:
        """Check that this account owns the secrets: files of another one lock the platform out.

        Root is refused as well, since its files would be root's. `command` is for the hint.

        Raises:
            Forbidden: they belong to another account.
        """
        try:
            folder = self.secrets if self.secrets.exists() else self.root
            if not folder.exists() or (owner := folder.stat().st_uid) == os.geteuid():
                return
            name = _account(owner)
        except PermissionError:  # a folder above it
            name = "another account"
        raise Forbidden(
            f"The data directory {self.root} belongs to {name}.",
            hint="Run this as the account that runs `runai up`:"
            f" sudo -u ACCOUNT runai {command} --data-dir {self.root}",
        )

    def hub_token(self) -> str:
        """Return the secret shared by the hub's process and the service."""
        return (self.root / HUB_TOKEN).read_text().strip()

    def lock(self, note: str) -> int:
        """Lock the directory for this process, also across exec; errors elsewhere quote `note`.

        Returns the open file: the kernel releases the lock with it, however the process ends.

        Raises:
            Conflict: a platform runs on it.
            InvalidRequest: it cannot be created or written.
        """
        path, flags = self.root / HUB_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, flags, 0o600)
        except OSError as wrong:
            raise self._unusable(wrong) from wrong
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 1000).decode(errors="replace").strip()
            os.close(descriptor)
            raise Conflict(
                f"A platform runs on {self.root} already: {holder}.",
                hint="Open that one, or start another with --data-dir and --port.",
            ) from None
        with contextlib.suppress(OSError):  # a full disk: locked, though without its note
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note.encode(), 0)
        os.set_inheritable(descriptor, True)  # exec keeps it open
        return descriptor

    def stable_port(self, name: str) -> int:
        """Return a port for `name` that stays the same over restarts while it is free.

        Sessions that outlive a hub keep calling the known port.
        """
        path = self.root / f"{name}.port"
        stored = path.read_text(errors="replace").strip() if path.exists() else ""
        port = int(stored) if re.fullmatch("[0-9]{1,5}", stored) else 0
        if not 0 < port <= MOST_PORT or not port_is_free(port):
            port = later_port()
            write_private(path, str(port))
        return port

    def open_log(self) -> int:
        """Open the hub's log for appending; the hub rotates it while it runs (`hub_log`)."""
        return os.open(self.hub_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _unusable(self, wrong: OSError) -> InvalidRequest:
        return InvalidRequest(
            f"The data directory {self.root} cannot be used: {wrong.strerror}.",
            hint="Name another one with --data-dir.",
        )


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically by one with mode 0600."""
    write_all_private({path: text})


def write_all_private(texts: Mapping[Path, str]) -> None:
    """Replace files by ones with mode 0600; all have found room before the first is replaced."""
    partials: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            partials[path] = partial
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for path, partial in partials.items():
            partial.replace(path)
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)


def _remove_write_permission(path: Path) -> list[Path]:
    """Remove other accounts' write permission from our file; return it if it changed.

    Raises:
        Forbidden: another account owns it, or may already have changed it.
    """
    own_uid = os.geteuid()
    target_status = path.stat() if path.exists() else path.lstat()
    for owner in (path.lstat().st_uid, target_status.st_uid):
        if owner not in {own_uid, 0}:
            raise Forbidden(
                f"{path} belongs to {_account(owner)}, who could change what the platform runs.",
                hint="Name another directory with --data-dir, or look through it and take it over:"
                f" chown -R {_account(own_uid)} {path}.",
            )
    if not target_status.st_mode & _GROUP_OR_OTHER_WRITE or stat.S_ISLNK(target_status.st_mode):
        return []
    is_empty = stat.S_ISDIR(target_status.st_mode) and not any(path.iterdir())
    if target_status.st_uid != own_uid or (own_uid == 0 and not is_empty):
        raise Forbidden(
            f"{path} can be written by others, who could change what the platform runs.",
            hint=f"Look through it, then close it: chmod go-w {path}.",
        )
    path.chmod(stat.S_IMODE(target_status.st_mode) & ~_GROUP_OR_OTHER_WRITE)
    return [path]


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
