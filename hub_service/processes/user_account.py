"""Unix account, home directory and initial environment of each user's workers.

Two modes: all workers run as the platform's account, with homes in the data directory; or
(`--system-users`) each worker runs as its user's Unix account.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from runai.hub_service.processes.shell_environment import passed_on, readable
from runai.hub_service.processes.user_environment import UserEnvironment

_PLAIN: Final = re.compile(r"[a-z0-9]([a-z0-9._@-]{0,61}[a-z0-9])?")
_LONGEST: Final = 200  # bytes; file systems take 255
_DIGEST_DIGITS: Final = 32
_NOBODY: Final = 65_534


def caches(home: Path) -> dict[str, str]:
    """Return the variables that keep caches in a home which tools put into TMPDIR by themselves."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(home / ".cache/torchinductor")}


def home_name(user: str) -> str:
    """Return the folder name of a user's home: one path component, unique per user.

    Plain names stay unchanged, other names are percent-quoted; long ones are cut and end in a
    digest.

    >>> home_name("ana@example.org"), home_name("Ana Müller"), home_name("..")
    ('ana@example.org', 'Ana M%C3%BCller', '%2E%2E')
    """
    if _PLAIN.fullmatch(user):
        return user
    quoted = quote(user, safe=" ").replace(".", "%2E")
    if quoted[:1] in {"-", "~"}:  # programs read "-" as an option, shells expand "~"
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    if len(quoted) > _LONGEST:
        digest = hashlib.sha256(user.encode()).hexdigest()[:_DIGEST_DIGITS]
        # Quoting never produces "%%", so the result differs from every uncut name.
        return f"{quoted[: _LONGEST - _DIGEST_DIGITS - 2]}%%{digest}"
    return quoted or "%"


@dataclass(frozen=True, slots=True)
class UnixAccount:
    """Account of a user's workers; `uid` None means the platform's own account."""

    user: str
    home: Path
    uid: int | None = None
    gid: int = 0
    shell: str = "/bin/sh"
    groups: tuple[int, ...] = ()
    """All groups, as numbers; () for the platform's own account."""
    umask: str = ""
    """The umask of its login, in three octal digits; "": not known."""

    def environment(self) -> dict[str, str]:
        """Return the initial environment of every program of this user."""
        passed = readable_by(self.uid, self.groups, passed_on(os.environ))
        python = UserEnvironment(self.home).variables(os.environ)
        own = {"HOME": str(self.home), "LOGNAME": self.user, "SHELL": self.shell, "USER": self.user}
        return passed | caches(self.home) | python | own


def readable_by(
    uid: int | None, groups: Sequence[int], passed: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables without files that an account cannot read; uid None: our own."""
    if uid is None:
        return readable(passed, os.geteuid(), lambda: [os.getegid(), *os.getgroups()])
    return readable(passed, uid, lambda: groups)


def unknown_account(user: str, uid: int | None = None) -> UnixAccount:
    """Return an account without rights, home and groups: of a name that nothing is known of."""
    return UnixAccount(user, Path("/nonexistent"), _NOBODY if uid is None else uid, _NOBODY)


def platform_account(user: str, data_dir: Path) -> UnixAccount:
    """Return the platform's own account, with a user's home in the data directory."""
    return UnixAccount(user, data_dir / "users" / home_name(user))
