"""Program that asks PAM for the state of Unix accounts: `state_program.py SERVICE NAME…`.

It prints a line of JSON for each: PAM's code, PAM's words, and the file that bars all logins or "".
A program of its own, since a module of PAM may not answer. Standard library only: it starts in
15 ms.
"""

import ctypes
import json
import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

SERVICES = ("/etc/pam.d", "/usr/lib/pam.d", "/usr/etc/pam.d")
NOLOGIN = ("/run/nologin", "/etc/nologin")
_AUTH_ERR = 7  # <security/_pam_types.h>; pam_nologin's
_USER_UNKNOWN = 10
_CONVERSATION_ERROR = 19
_ERROR_MESSAGE = 3


class _Message(ctypes.Structure):
    _fields_ = (("style", ctypes.c_int), ("text", ctypes.c_char_p))


_CONVERSE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.POINTER(_Message)),
    ctypes.c_void_p,
    ctypes.c_void_p,
)


class _Conversation(ctypes.Structure):
    _fields_ = (("converse", _CONVERSE), ("data", ctypes.c_void_p))


def states(service: str, names: list[str]) -> Iterator[tuple[str, tuple[int, str, str]]]:
    """Yield each account's state; all are well without PAM, or the service's own file.

    Without that file PAM would take the service `other`, which denies all on some systems.
    """
    pam = None
    if any(os.path.exists(f"{folder}/{service}") for folder in SERVICES):  # noqa: PTH110
        with suppress(OSError):
            pam = ctypes.CDLL("libpam.so.0")
    for name in names:
        yield name, _state(pam, service, name) if pam else (0, "", "")


def _state(pam: ctypes.CDLL, service: str, name: str) -> tuple[int, str, str]:
    """Return the code and text of PAM for an account, and the file that bars all logins."""
    try:
        pwd.getpwnam(name)
    except KeyError:  # with Debian's files PAM says that it is expired
        return _USER_UNKNOWN, "no account", ""
    pam.pam_strerror.restype = ctypes.c_char_p
    errors: list[bytes] = []

    def converse(count: int, messages: Any, *_: object) -> int:  # noqa: ANN401 - a pointer
        received = [messages[number].contents for number in range(count)]
        errors.extend(each.text or b"" for each in received if each.style == _ERROR_MESSAGE)
        return _CONVERSATION_ERROR  # there is nobody to answer

    handle = ctypes.c_void_p()
    conversation = _Conversation(_CONVERSE(converse), None)
    arguments = service.encode(), os.fsencode(name)
    code = pam.pam_start(*arguments, ctypes.byref(conversation), ctypes.byref(handle))
    code = code or pam.pam_acct_mgmt(handle, 0)
    text = errors[0] if errors else pam.pam_strerror(handle, code)
    pam.pam_end(handle, code)
    barred = [path for path in NOLOGIN if os.path.exists(path)]  # noqa: PTH110
    nologin = barred[0] if code == _AUTH_ERR and barred else ""
    return code, text.decode(errors="replace"), nologin


if __name__ == "__main__":
    answer = os.dup(1)
    os.dup2(2, 1)  # a module may print
    for account, state in states(sys.argv[1], sys.argv[2:]):
        os.write(answer, f"{json.dumps({account: state})}\n".encode())
