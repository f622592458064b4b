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
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from runai.hub_service.wire.amounts import Seconds, clock_text
from runai.hub_service.wire.base_schema import Cpus
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import SubmitRequest
from runai.hub_service.wire.validation import checked
from runai.spawner.amount import NO_GPU, Amount, parse_amount

LONGEST_NAME: Final = 38
GRACE_SECONDS: Final = 30
_DIGEST_LETTERS: Final = 16  # 80 bits
_GPU_TYPE: Final = re.compile(r"[ -~]{1,200}")
_PROJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?")
OPTIONS: Final = ("project", "gpus", "time", "gpu_type")
OF_MACHINE: Final = ("cpu", "memory", "settings")
"""Options on one machine; in Kubernetes KubeSpawner has its own."""
WITHOUT: Final = "without"
"""Value of the option `settings`: a start without the user's settings."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A project and an amount of GPU; without a project, no GPU and no workload."""

    project: str | None = None
    amount: Amount = NO_GPU
    time: int | None = None
    """Limit of its running time in seconds; None: the project's."""
    gpu_type: str | None = None
    """Types of GPU in order of preference, as `--gpu-type` takes them; None: any."""
    cpu: Decimal | None = None
    memory_mib: int | None = None
    """Main memory, as `cpu` beside the GPU; None: the platform's default."""
    without_settings: bool = False
    """True for a start that reads no settings of the user's home."""

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> "SessionRequest":
        """Parse user options: `project`, `gpus` as a number or text, `time` such as 8h.

        `gpu_type` is such as h100, `cpu` such as 0.5, `memory` such as 8 GiB, `settings` is
        "without" or empty. Empty options are a session without a GPU.

        Raises:
            InvalidRequest: an option is unknown or its value is not valid.
        """
        if unknown := sorted(set(options) - {*OPTIONS, *OF_MACHINE}):
            raise InvalidRequest(
                f"There is no option {', '.join(repr(name[:40]) for name in unknown)}.",
                hint=f"A session takes {', '.join((*OPTIONS, *OF_MACHINE))}.",
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
        gpu_type = None if amount.is_nothing else _gpu_type(options.get("gpu_type") or None)
        cpu, memory_mib = _cpu(options.get("cpu")), _memory_mib(options.get("memory"))
        if project is None and (cpu, memory_mib) != (None, None):
            raise InvalidRequest(
                "Choose a project to request CPU or memory.", hint="Or leave both empty."
            )
        time = _time(options.get("time") or None)
        if (settings := options.get("settings") or "") not in ("", WITHOUT):
            raise InvalidRequest(
                f"{str(settings)[:40]!r} is no choice of settings.",
                hint=f"Write {WITHOUT} for a start without yours, or nothing.",
            )
        return cls(project, amount, time, gpu_type, cpu, memory_mib, bool(settings))

    def options(self) -> dict[str, str]:
        """Return the user options that JupyterHub stores for the next start."""
        time = {} if self.time is None else {"time": clock_text(self.time)}
        kind = {} if self.gpu_type is None else {"gpu_type": self.gpu_type}
        cpu = {} if self.cpu is None else {"cpu": f"{self.cpu:f}"}
        memory = Amount(memory_mib=self.memory_mib or 0)
        return {
            "project": self.project or "",
            "gpus": self.amount.text(),
            **time,
            **kind,
            **cpu,
            **({} if memory.is_nothing else {"memory": memory.text()}),
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
                "max_runtime": self.time,
                "gpu_type": self.gpu_type,
                "cpu": self.cpu,
                "memory_mib": self.memory_mib,
            },
        )


_SECONDS: Final[TypeAdapter[int]] = TypeAdapter(Seconds)


def _time(given: object) -> int | None:
    """Parse a time limit such as 8h into seconds; None: no limit of its own."""
    try:
        return None if given is None else _SECONDS.validate_python(given)
    except ValidationError:
        raise InvalidRequest(
            f"{str(given)[:40]!r} is no time.", hint="Write for example 20m or 8h, or nothing."
        ) from None


_CPUS: Final[TypeAdapter[Decimal]] = TypeAdapter(Cpus)


def _cpu(given: object) -> Decimal | None:
    """Parse a number of CPUs; nothing: None."""
    if given is None or given == "":
        return None
    written = given.strip().replace(",", ".") if isinstance(given, str) else given
    with suppress(ValidationError):
        if isinstance(written, str | int | float) and not isinstance(written, bool):
            return _CPUS.validate_python(written)
    raise InvalidRequest(
        f"{str(given)[:40]!r} is no number of CPUs.", hint="Write for example 0.5 or 4, or nothing."
    )


def _memory_mib(given: object) -> int | None:
    """Parse main memory such as 8 GiB into MiB; nothing: None."""
    if given is None or given == "":
        return None
    with suppress(InvalidRequest):
        if isinstance(given, str) and (mib := parse_amount(given).memory_mib):
            return mib
    raise InvalidRequest(
        f"{str(given)[:40]!r} is no amount of memory.", hint="Write for example 8 GiB, or nothing."
    )


def _gpu_type(given: object) -> str | None:
    if given is None or (isinstance(given, str) and _GPU_TYPE.fullmatch(given)):
        return given
    raise InvalidRequest(
        f"{str(given)[:40]!r} is no type of GPU.", hint="Choose one on offer, or any."
    )


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
