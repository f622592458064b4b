"""The home and the current folder of this process's account."""

import os
from contextlib import suppress
from pathlib import Path

from runai.hub_service.wire.errors import InvalidRequest


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` and `~USER` replaced by the home directory.

    Raises:
        InvalidRequest: that account has none, as in a container with a number for an account.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        name = Path(path).parts[0].removeprefix("~")
        raise InvalidRequest(
            f"The home directory of {name or f'this account (uid {os.geteuid()})'} is not known,"
            f" so {path} cannot be found.",
            hint="Name another path." if name else "Set HOME, or name a path without ~.",
            code="no_home",
        ) from None


def removed_folder() -> str:
    """Return the name of the current folder if it was removed; "" if it is there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        with suppress(OSError):  # only Linux still knows its name
            return str(Path("/proc/self/cwd").readlink()).removesuffix(" (deleted)")
        return "the current folder"
    return ""
