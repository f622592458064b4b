"""A session's request and name, shared by both spawners.

Pure: user options (from the form or the REST API, untrusted) become a `SessionRequest` or one error
sentence; user and server become the session's name.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from runai.hub_service.wire.amounts import DURATION, MEMORY, clock_text
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.validation import checked
from runai.hub_service.wire.workload_request import RequestField, SubmitRequest, request_fields
from runai.spawner.amount import NO_GPU, Amount, parse_amount

LONGEST_NAME: Final = 38
GRACE_SECONDS: Final = 30
_DIGEST_LETTERS: Final = 16  # 80 bits
_PROJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?")
WITHOUT: Final = "without"
"""Value of the option `settings`: a start without the user's settings."""
SPAWN_FIELDS: Final = [each for each in request_fields() if each.option.in_spawn_form]
"""Fields of a request that a session's user chooses, in the form's order."""
OPTIONS: Final = (
    "project",
    "gpus",
    *(each.spawn_name for each in SPAWN_FIELDS if "kubernetes" in each.option.in_spawn_form),
)
OF_MACHINE: Final = (
    *(each.spawn_name for each in SPAWN_FIELDS if each.spawn_name not in OPTIONS),
    "settings",
)
"""Options on one machine alone."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A project and an amount of GPU; without a project, no GPU and no workload."""

    project: str | None = None
    amount: Amount = NO_GPU
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The other fields of the request that its user set, such as `cpu` and `max_runtime`."""
    without_settings: bool = False
    """True for a start that reads no settings of the user's home."""

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> "SessionRequest":
        """Parse user options: `project`, `gpus` as a number or text, `settings`.

        `settings` is "without" or empty; the rest are fields of a request by their flags' names:
        `time` such as 8h, `memory` such as 8 GiB. Empty options are a session without a GPU.

        Raises:
            InvalidRequest: an option is unknown or its value is not valid.
        """
        known = (*OPTIONS, *OF_MACHINE)
        if unknown := sorted(set(options) - set(known)):
            raise InvalidRequest(
                f"There is no option {', '.join(repr(name[:40]) for name in unknown)}.",
                hint=f"A session takes {', '.join(known)}.",
            )
        project = options.get("project") or None
        if project is not None and not (isinstance(project, str) and _PROJECT.fullmatch(project)):
            raise InvalidRequest(
                "That is not a valid project name.", hint="Choose one of the projects on offer."
            )
        amount = parse_amount(options.get("gpus", "0"))
        if project is None and not amount.is_nothing:
            raise InvalidRequest(
                f"Choose a project to get {amount.in_words()}.",
                hint="Or choose a notebook without a GPU.",
            )
        fields = _fields(options)
        if amount.is_nothing:
            fields.pop("gpu_type", None)
        if project is None and {"cpu", "memory_mib"} & set(fields):
            raise InvalidRequest(
                "Choose a project to request CPU or memory.", hint="Or leave both empty."
            )
        if (settings := options.get("settings") or "") not in ("", WITHOUT):
            raise InvalidRequest(
                f"{str(settings)[:40]!r} is no choice of settings.",
                hint=f"Write {WITHOUT} for a start without yours, or nothing.",
            )
        return cls(project, amount, fields, bool(settings))

    def options(self) -> dict[str, str]:
        """Return the user options that JupyterHub stores for the next start."""
        return {
            "project": self.project or "",
            "gpus": self.amount.text(),
            **{
                each.spawn_name: _text(each, self.fields[each.name])
                for each in SPAWN_FIELDS
                if each.name in self.fields
            },
            **({"settings": WITHOUT} if self.without_settings else {}),
        }

    @property
    def is_workload(self) -> bool:
        """Return True if the session has a project, and so is a workload."""
        return self.project is not None

    def submission(self, *, owner: str, server: str, workdir: str = "") -> SubmitRequest:
        """Return the submission to the service in the owner's name.

        Raises:
            InvalidRequest: the service does not accept the server's or the owner's name.
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
                **self.fields,
            },
        )


def _fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that the options set, validated; empty ones are left out.

    Raises:
        InvalidRequest: a value is not valid.
    """
    given = {
        each.name: each.typed(value)
        for each in SPAWN_FIELDS
        if (value := options.get(each.spawn_name)) not in (None, "")
    }
    names = {each.name: each.spawn_name for each in SPAWN_FIELDS}
    request = checked(SubmitRequest, given, names)
    return {name: getattr(request, name) for name in given}


def _text(spawn_field: RequestField, value: object) -> str:
    """Return a field's value as the form shows it and `parse` takes it."""
    if spawn_field.kind is MEMORY:
        return Amount(memory_mib=int(str(value))).text()
    if spawn_field.kind is DURATION:
        return clock_text(int(str(value)))
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def session_name(user: str, server: str = "") -> str:
    """Return a session's name: a DNS label of at most 38 characters, unique per server.

    Names of a-z and 0-9 are used unchanged; all other names are slugged and end in a digest.

    >>> session_name("ana"), session_name("ana", "big")
    ('lab-ana', 'lab-ana-big')
    >>> session_name("Ana Müller")
    'lab-ana-m-ller--p37bnktmwyep6ieg'
    """
    parts = ["lab", user, server] if server else ["lab", user]
    name = "-".join(parts)
    # "ana" with server "big" and "ana-big" without one must not be the same session.
    if len(name) <= LONGEST_NAME and all(re.fullmatch(r"[a-z0-9]+", part) for part in parts):
        return name
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower())[: LONGEST_NAME - _DIGEST_LETTERS - 2].strip("-")
    digest = hashlib.sha256(json.dumps([user, server]).encode()).digest()
    # No plain name has "--".
    return f"{slug}--{base64.b32encode(digest).decode().lower()[:_DIGEST_LETTERS]}"


def with_allocated(env: Mapping[str, str], allocated: Mapping[str, str]) -> dict[str, str]:
    """Merge the allocation's variables into a server's environment.

    The allocation's values win; its PYTHONPATH is put before the server's own.

    >>> with_allocated({"PYTHONPATH": "/site", "A": "1"}, {"PYTHONPATH": "/hook"})
    {'PYTHONPATH': '/hook:/site', 'A': '1'}
    """
    paths = [allocated.get("PYTHONPATH", ""), env.get("PYTHONPATH", "")]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, paths))} if any(paths) else {}
    return {**env, **allocated, **path}
