"""What a server start asks for, as types: both spawners share it.

Pure: user options (from the form or the REST API, never trusted) become a `SessionRequest`, or one
sentence; user and server become the session's name. The wait for GPUs is in `admission`.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.api.validation import checked
from runai.hub_service.errors import InvalidRequest
from runai.spawner.amount import NO_GPU, Amount, parse_amount

__all__ = ["OPTIONS", "SessionRequest", "folder_name", "session_name", "with_handed"]

LONGEST_NAME: Final = 38
GRACE_SECONDS: Final = 30
_HASH_LETTERS: Final = 6
_PROJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?")
OPTIONS: Final = ("project", "gpus")


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A project and an amount of GPU; without a project there is no GPU and no workload."""

    project: str | None = None
    amount: Amount = NO_GPU

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> "SessionRequest":
        """Read user options: `project`, and `gpus` as a number or as people write it.

        Nothing given is a session without a GPU.

        Raises:
            InvalidRequest: an option is unknown or its value cannot be meant.
        """
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise InvalidRequest(
                f"There is no option {', '.join(repr(name[:40]) for name in unknown)}.",
                hint=f"A session takes {' and '.join(OPTIONS)}.",
            )
        project = options.get("project") or None
        if project is not None and not (isinstance(project, str) and _PROJECT.fullmatch(project)):
            raise InvalidRequest(
                "That is no name of a project.", hint="Choose one of the projects on offer."
            )
        amount = parse_amount(options.get("gpus", "0"))
        if project is None and not amount.is_nothing:
            raise InvalidRequest(
                f"{amount.in_words()} cannot be had without a project.",
                hint="Choose a project, or a session without a GPU.",
            )
        return cls(project, amount)

    def options(self) -> dict[str, str]:
        """Return it as user options, as JupyterHub keeps them for the next start."""
        return {"project": self.project or "", "gpus": self.amount.text()}

    @property
    def is_workload(self) -> bool:
        """Say whether the service must know of it: whatever belongs to a project is."""
        return self.project is not None

    def submission(self, *, owner: str, server: str, workdir: str = "") -> SubmitRequest:
        """Return what the service is asked for in the owner's name.

        Raises:
            InvalidRequest: the service takes no server or user of such a name.
        """
        return checked(
            SubmitRequest,
            {
                "name": session_name(owner, server),
                "project": self.project,
                "kind": "session",
                "owner": owner,
                "server": server,
                "workdir": workdir,
                "gpus": self.amount.gpus if not self.amount.memory_mib else None,
                "gpu_memory_mib": self.amount.memory_mib or None,
                "grace_seconds": GRACE_SECONDS,
            },
        )


def session_name(user: str, server: str = "") -> str:
    """Name a session: a DNS label of at most 38 characters, one for each user and server.

    Plain names stay readable; others are made plain and told apart by a hash.

    >>> session_name("ana"), session_name("ana", "big")
    ('lab-ana', 'lab-ana-big')
    >>> session_name("Ana Müller")
    'lab-ana-m-ller-a04d50'
    """
    readable = "-".join(["lab", user, server] if server else ["lab", user])
    # "ana" with server "big" and "ana-big" without one must not be the same session.
    plain = all(re.fullmatch(r"[a-z0-9]+", part) for part in (user, server) if part or not user)
    looks_hashed = re.fullmatch(rf"[0-9a-f]{{{_HASH_LETTERS}}}", server)
    return _label(readable, f"{user}/{server}", unique=plain and not looks_hashed)


def with_handed(env: Mapping[str, str], handed: Mapping[str, str]) -> dict[str, str]:
    """Return a server's environment with what its allocation hands over.

    What is handed over wins; a PYTHONPATH that was there follows it, so that nothing is lost.

    >>> with_handed({"PYTHONPATH": "/site", "A": "1"}, {"PYTHONPATH": "/hook"})
    {'PYTHONPATH': '/hook:/site', 'A': '1'}
    """
    paths = [handed.get("PYTHONPATH", ""), env.get("PYTHONPATH", "")]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, paths))} if any(paths) else {}
    return {**env, **handed, **path}


def folder_name(user: str) -> str:
    """Name a user's home: one folder for each user, no name leads anywhere else.

    >>> folder_name("ana"), folder_name("ana@example.org")
    ('ana', 'ana@example.org')
    """
    if re.fullmatch(r"[a-z0-9]([a-z0-9._@-]{0,61}[a-z0-9])?", user):
        return user
    return _label(user, user, unique=False)


def _label(readable: str, identity: str, *, unique: bool) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", readable.lower()).strip("-")
    if unique and len(slug) <= LONGEST_NAME:
        return slug
    digest = hashlib.sha256(identity.encode()).hexdigest()[:_HASH_LETTERS]
    return f"{slug[: LONGEST_NAME - _HASH_LETTERS - 1].strip('-')}-{digest}".lstrip("-")
