"""The umask of a job or notebook server that runs as its user's Unix account."""

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.program_schemas import UmaskNote

USUAL: Final = "022"
_OWNER: Final = 0o700
_MACHINE: Final = ("/etc/machine-id", "/proc/sys/kernel/random/boot_id")


def umask_note() -> UmaskNote | None:
    """Return this process's umask, account and machine; None if the system does not tell."""
    # os.umask changes it, for all threads.
    found = re.search(r"^Umask:\s*([0-7]{3,4})$", _text("/proc/self/status"), re.MULTILINE)
    if found is None or not (machine := this_machine()):
        return None
    return UmaskNote(umask=found[1], uid=os.geteuid(), machine=machine)


def this_machine() -> str:
    """Return a digest of the machine's id and its boot's; "" if it has none.

    The id itself stays here (machine-id(5)).
    """
    ids = [_text(path).strip() for path in _MACHINE]
    return hashlib.sha256(" ".join(["runai-umask", *ids]).encode()).hexdigest() if all(ids) else ""


def umask_of_submission(note: UmaskNote | None, uid: int) -> str:
    """Return the umask with which an account submits, in three octal digits.

    "": the client ran as another account, or on another machine, or did not tell.

    Raises:
        InvalidRequest: it takes rights away from the owner.
    """
    if note is None or (note.uid, note.machine) != (uid, this_machine()):
        return ""
    if int(note.umask, 8) & _OWNER:
        raise InvalidRequest(
            f"Your umask is {note.umask}: the job could not use its own files.",
            hint="Set another one before you submit, such as umask 022.",
            code="umask_of_owner",
        )
    return note.umask[-3:]


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""
