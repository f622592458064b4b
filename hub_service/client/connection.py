"""Address and credentials of the service, from the session's environment or `runai login`.

`runai login` writes them to `~/.config/runai/config.json` (mode 0600). Without pydantic and httpx:
`runai status` reads them, too.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runai.hub_service.processes.accounts.home_folder import expanded
from runai.hub_service.wire.errors import InvalidRequest, Unavailable


@dataclass(frozen=True, slots=True)
class Connection:
    """The service's root address, the token and the default project."""

    url: str
    token: str = field(repr=False)
    project: str | None = None
    ca: str | None = None
    """PEM file of the only authority to trust; None: the system's authorities."""


def checked_token(token: str) -> str:
    """Return a token that a header can carry.

    Raises:
        InvalidRequest: it has other letters; the message does not have it.
    """
    if not (token.isascii() and token.isprintable()):
        raise InvalidRequest(
            "The token has letters that no token has.", hint="Copy it again: `runai login`."
        )
    return token


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file that `runai login` and `runai project use` write.

    Raises:
        InvalidRequest: this account has no home directory.
    """
    own = environ.get("XDG_CONFIG_HOME")
    return (Path(own) if own else expanded("~/.config")) / "runai" / "config.json"


def read_config(path: Path) -> Connection | None:
    """Read the file of `runai login`; None if it does not exist.

    Raises:
        InvalidRequest: the file is damaged or cannot be read.
    """
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8-sig"))
        optional = {name: str(value[name]) for name in ("project", "ca") if value.get(name)}
        return Connection(str(value["url"]), str(value["token"]), **optional)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be read: {error.strerror}.",
            hint="Remove it and log in with `runai login`.",
            code="damaged_config",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # The content includes a token: report the path only.
        raise InvalidRequest(
            f"{path} is damaged.", hint="Write it anew with `runai login`.", code="damaged_config"
        ) from None


def write_config(connection: Connection, path: Path) -> None:
    """Save a connection for later commands, readable only by its owner."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    fields = {name: value for name, value in asdict(connection).items() if value is not None}
    with os.fdopen(descriptor, "w") as file:
        json.dump(fields, file, indent=2)
    unfinished.replace(path)


class ConnectionSource:
    """The source of a connection, for a client whose token is refused."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Read nothing yet."""
        self._environ = environ

    @property
    def is_session(self) -> bool:
        """Return True if the environment has the token, which never changes there."""
        return bool(
            self._environ.get("RUNAI_API_URL") and self._environ.get("JUPYTERHUB_API_TOKEN")
        )

    def newer_token(self, url: str, token: str) -> str | None:
        """Return the token of a newer login to the same address; None: there is none."""
        with suppress(InvalidRequest):
            stored = None if self.is_session else read_config(config_path(self._environ))
            if stored and stored.url.rstrip("/") == url.rstrip("/") and stored.token != token:
                return stored.token
        return None

    def version(self) -> int:
        """Return a number that changes with the file of `runai login`; it costs no request."""
        with suppress(OSError, InvalidRequest):
            return config_path(self._environ).stat().st_mtime_ns
        return 0


def find_connection(environ: Mapping[str, str] = os.environ) -> Connection:
    """Return the connection to this session's service, else the one of `runai login`.

    The project is the session's own, else the one of `runai project use`.

    Raises:
        Unavailable: neither is configured.
    """
    url, token = environ.get("RUNAI_API_URL"), environ.get("JUPYTERHUB_API_TOKEN")
    try:
        stored = read_config(config_path(environ))
    except InvalidRequest:
        if not (url and token):
            raise
        stored = None  # a session needs nothing of it
    if url and token:
        project = environ.get("RUNAI_PROJECT") or (stored.project if stored else None)
        return Connection(url, token, project)
    if stored is None:
        raise Unavailable(
            "Not logged in to a GPU platform.",
            hint="Run `runai login https://YOUR-HUB`; notebooks of the hub need no login.",
            code="not_logged_in",
        )
    return stored
