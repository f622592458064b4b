"""Sentences on paths that an account cannot use: the folder in the way, and its owner.

Every test is made as the account of the process: root may use everything. The program
`python -I -S path_faults.py JSON` checks a session's home and Python, after a change to its
account. Standard library only: the supervisor's program loads it without its package.
"""

import errno
import json
import os
import pwd
import signal
import stat
import sys
from typing import Any, NamedTuple

_NAMES = ("EIO", "ENOTCONN", "EHOSTDOWN", "EHOSTUNREACH", "EREMOTEIO", "ESTALE", "ETIMEDOUT")
AWAY = frozenset(getattr(errno, name) for name in _NAMES if hasattr(errno, name))
"""Errors of a disk that cannot be reached now, as over a network."""
PROGRAM = __file__
DENIED = frozenset({errno.EACCES, errno.EPERM})
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
WITHIN_S = 60  # bounds a start whose home is on a disk that hangs


class PathFault(NamedTuple):
    """Why a path cannot be used."""

    text: str
    is_home_away: bool = False
    """True if the home is missing or cannot be reached now: it may come back by itself."""


def path_fault(path: str, number: int, user: str, home: str, use: int = os.W_OK) -> PathFault:
    """Return why the use of an absolute path failed with an errno.

    `user` names this process's account. `use` is what a file was to be used for: `os.W_OK` or
    `os.X_OK`.
    """
    *folders, path = _places(path)
    parent = "/"
    for place in [*folders, path]:
        try:
            status = os.stat(place)  # noqa: PTH116
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.EACCES} and os.path.islink(place):  # noqa: PTH114
                real = os.path.realpath(place)
                home = _resolved(home, place, real)
                return path_fault(_resolved(path, place, real), number, user, home, use)
            if error.errno == errno.ENOENT:
                return _fault_of_missing(place, parent, number, user, home)
            return _fault_of_errno(place, error.errno or 0, home)
        if stat.S_ISDIR(status.st_mode):
            if not os.access(place, os.X_OK):
                return PathFault(_denied_text("enter", place, user, home))
        elif place != path or number in {errno.ENOTDIR, errno.EEXIST}:
            return PathFault(f"{place} is a file, not a folder")
        parent = place
    return _fault_of_existing(path, number, user, home, use)


def cannot_start(what: str, fault: PathFault) -> str:
    """Return the sentence on a start that failed; `what` is left out if the fault has its path.

    >>> cannot_start("in /data/ana", PathFault("/data is not there"))
    'cannot start in /data/ana: /data is not there'
    >>> cannot_start("in /data", PathFault("/data is not there"))
    'cannot start: /data is not there'
    """
    path = what.removeprefix("in ")
    is_named = not path or (path.startswith("/") and path in fault.text)
    return f"cannot start{'' if is_named else ' ' + what}: {fault.text}"


def _fault_of_missing(place: str, parent: str, number: int, user: str, home: str) -> PathFault:
    """Return the fault of a path whose part `place` does not exist."""
    if _is_within(home, place):
        return PathFault(f"{home} is not there", is_home_away=True)
    if number in DENIED and not os.access(parent, os.W_OK):
        return PathFault(_denied_text("write to", parent, user, home))
    if number == errno.ENOENT:
        return PathFault(f"{place} is not there")
    return _fault_of_errno(place, number, home)


def _fault_of_existing(path: str, number: int, user: str, home: str, use: int) -> PathFault:
    """Return why a path that exists cannot be used."""
    status = os.stat(path)  # noqa: PTH116
    is_folder = stat.S_ISDIR(status.st_mode)
    if is_folder and number == errno.EISDIR:
        return PathFault(f"{path} is a folder, not a file")
    if number in DENIED and not os.access(path, os.W_OK if is_folder else use):
        verb = "execute" if use == os.X_OK else "write to"
        return PathFault(_denied_text(verb, path, user, home))
    if number == errno.EPERM and status.st_uid != os.geteuid():
        return PathFault(_foreign_text(path, status, user))
    if use == os.X_OK and (interpreter := _interpreter(path)):
        return path_fault(interpreter, number, user, home, use)
    return _fault_of_errno(path, number, home)


def account_name(uid: int) -> str:
    """Return the name of an account; its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _denied_text(verb: str, place: str, user: str, home: str) -> str:
    """Return the sentence on a denied use, with owner and mode of the place."""
    status = os.stat(place)  # noqa: PTH116
    if place == home and status.st_uid != os.geteuid():
        return _foreign_text(place, status, user)
    ownership = f"owner {account_name(status.st_uid)}, mode {stat.S_IMODE(status.st_mode):04o}"
    return f"{user} cannot {verb} {place} ({ownership})"


def _foreign_text(place: str, status: os.stat_result, user: str) -> str:
    name, number = account_name(status.st_uid), f"uid {status.st_uid}"
    owner = name if name == number else f"{name} ({number})"
    return f"{place} belongs to {owner}, not to {user}"


def _interpreter(path: str) -> str:
    """Return the absolute path of a script's interpreter; "" if there is none to be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(4096)
    except OSError:
        return ""
    words = head.splitlines()[0].removeprefix(b"#!").split() if head.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words and words[0].startswith(b"/") else ""


def _fault_of_errno(place: str, number: int, home: str) -> PathFault:
    """Return the fault by the errno alone."""
    is_at_home = _is_within(home, place) or _is_within(place, home)
    return PathFault(f"{place}: {os.strerror(number)}", number in AWAY and is_at_home)


def _places(path: str) -> list[str]:
    """Return the path's folders from the root on, and the path.

    >>> _places("/home/ana")
    ['/', '/home', '/home/ana']
    """
    parts = [part for part in path.split("/") if part]
    return ["/" + "/".join(parts[:number]) for number in range(len(parts) + 1)]


def _is_within(path: str, folder: str) -> bool:
    """Return True if a path is a folder, or lies below it."""
    return bool(path and folder) and (path == folder or path.startswith(f"{folder.rstrip('/')}/"))


def _resolved(path: str, place: str, real: str) -> str:
    """Return a path with the link `place` in it replaced by its target."""
    return real + path[len(place) :] if _is_within(path, place) else path


# -- program -------------------------------------------------------------------------------------


def session_fault(user: str, home: str, program: str, folder: str) -> dict[str, Any]:
    """Return why this account, named `user`, cannot run a session; {} if it can.

    The session begins in its home and runs a program. It writes to a folder, which is made; "": to
    none that is known. A full disk is no reason.
    """
    step = "home"
    try:
        os.chdir(home)
        if program:
            step = "program"
            _check_access(program, os.X_OK)
        if folder:
            step = "settings"
            os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
            _check_access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        if error.errno in NO_ROOM:
            return {}
        what, use = (program, os.X_OK) if step == "program" else ("", os.W_OK)
        fault = path_fault(os.fsdecode(error.filename), error.errno or 0, user, home, use)
        is_settings = step == "settings" and not fault.is_home_away
        text = cannot_start(what, fault)
        return {"text": text, "is_home_away": fault.is_home_away, "is_settings": is_settings}
    return {}


def _check_access(path: str, use: int) -> None:
    os.stat(path)  # noqa: PTH116
    if not os.access(path, use):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)


def main() -> None:
    """Change to the account in the arguments, if any, and print the session's fault."""
    options = json.loads(sys.argv[1])
    signal.alarm(WITHIN_S)
    os.umask(0o077)
    if options["uid"] is not None:
        os.setgroups(options["groups"])
        os.setgid(options["gid"])
        os.setuid(options["uid"])
    user = options["user"] or account_name(os.geteuid())
    fault = session_fault(user, options["home"], options["program"], options["folder"])
    print(json.dumps(fault))  # noqa: T201


if __name__ == "__main__":
    main()
