"""Limits of a Unix account, as a PAM session sets them in a program that opens it for this alone.

So PAM's modules change no process of a job or server, and one that hangs is killed. Standard
library only: the supervisor's program loads it without its package (`subreaper.py`).
"""

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

SERVICE = "runai"
"""Service of PAM, a file of /etc/pam.d that the machine's admin writes, or not."""
WITHIN_S = 10
_SILENT = 0x8000  # <security/_pam_types.h>
_CONVERSATION_ERROR = 19
_CONVERSE = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int, *[ctypes.c_void_p] * 3])
_NUMBERS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class NoSession(Exception):
    """Error: PAM opens no session for an account; the message says why, without a full stop."""


class AccountLimits(NamedTuple):
    """The limits of a process that a PAM session changes."""

    limits: Sequence[tuple[int, int, int]] = ()
    """Number, soft and hard limit, as `setrlimit` takes them."""
    priority: int | None = None

    def apply(self) -> None:
        """Set them for this process."""
        for number, soft, hard in self.limits:
            resource.setrlimit(number, (soft, hard))
        if self.priority is not None:
            os.setpriority(os.PRIO_PROCESS, 0, self.priority)


def has_service(service: str = SERVICE) -> bool:
    """Return True if this machine has the service of PAM."""
    return os.path.exists(f"/etc/pam.d/{service}")  # noqa: PTH110


def of_account(user: str, open_files: int, service: str = SERVICE) -> AccountLimits:
    """Return the limits of an account's session; none if the machine has no such service.

    They begin with this process's limits, and `open_files` as the soft one of descriptors (0: its
    own).

    Raises:
        NoSession: PAM refuses it, or is late.
    """
    if not has_service(service):
        return AccountLimits()
    import subprocess  # noqa: PLC0415 - rarely needed, and a supervisor starts faster without

    program = subprocess.Popen(  # noqa: S603 - our own
        [sys.executable, "-I", "-S", os.path.abspath(__file__), service, user, str(open_files)],  # noqa: PTH100
        cwd="/",
        env={k: v for k in ("LD_LIBRARY_PATH",) if (v := os.environ.get(k))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    outcome: dict[str, Any] = {"refused": "its program has failed"}
    try:
        answer, _ = program.communicate(timeout=WITHIN_S)
        outcome = json.loads(answer or json.dumps(outcome))
    except subprocess.TimeoutExpired:
        outcome = {"refused": f"no answer within {WITHIN_S} s"}
        program.kill()
        with suppress(subprocess.TimeoutExpired):
            program.communicate(timeout=1)  # later, if a disk does not answer
    if why := outcome.get("refused"):
        raise NoSession(f"PAM (service {service}) opens no session for {user}: {why}")
    return AccountLimits(outcome["limits"], outcome["priority"])


class _Conversation(ctypes.Structure):
    _fields_ = (("converse", _CONVERSE), ("data", ctypes.c_void_p))


def main(service: str, user: str, open_files: int) -> None:
    """Open a session, print which limits it has changed, and close it."""
    signal.alarm(WITHIN_S)  # the caller may be killed
    answer = os.dup(1)
    os.dup2(2, 1)  # modules may print
    if open_files:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))
    before, priority = _limits(), os.getpriority(os.PRIO_PROCESS, 0)
    pam = ctypes.CDLL("libpam.so.0")
    pam.pam_strerror.restype = ctypes.c_char_p
    handle = ctypes.c_void_p()
    conversation = _Conversation(_CONVERSE(lambda *_: _CONVERSATION_ERROR), None)
    names = service.encode(), os.fsencode(user)
    status = pam.pam_start(*names, ctypes.byref(conversation), ctypes.byref(handle))
    status = status or pam.pam_open_session(handle, _SILENT)
    now = os.getpriority(os.PRIO_PROCESS, 0)
    outcome: dict[str, Any] = {
        "limits": [(n, *limits) for n, limits in _limits().items() if limits != before[n]],
        "priority": now if now != priority else None,
    }
    if status:
        outcome = {"refused": pam.pam_strerror(handle, status).decode(errors="replace")}
    os.write(answer, json.dumps(outcome).encode())
    if not status:
        pam.pam_close_session(handle, _SILENT)
    pam.pam_end(handle, status)


def _limits() -> dict[int, tuple[int, int]]:
    return {number: resource.getrlimit(number) for number in _NUMBERS}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
