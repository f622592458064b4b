"""Program that looks up a Unix account: `lookup_program.py NAME GROUP…` prints two lines of JSON.

The first has the account, the second what may hang by itself: a home on another machine. A program
of its own, since a thread in `getpwnam` cannot be ended while the account directory (LDAP, SSSD)
does not answer. Standard library only: it starts in 15 ms. Each GROUP was the account's by that
directory before, and is believed to be the account's no more if it answers itself.
"""

import grp
import json
import os
import pwd
import sys
from collections.abc import Sequence
from typing import Any

ACCOUNTS = "/etc/passwd"
GROUPS = "/etc/group"


def account(name: str, groups_before: Sequence[int]) -> dict[str, Any]:
    """Return what is known of an account now; without "uid" there is none, or no answer.

    "local" is None, and all groups are the directory's, if this machine's own files cannot be read.
    """
    names = column(ACCOUNTS, 0)
    local = None if names is None else os.fsencode(name) in names
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return {"local": local}
    groups = os.getgrouplist(name, entry.pw_gid)
    here = column(GROUPS, 2) or ()
    return {
        "local": local,
        "uid": entry.pw_uid,
        "gid": entry.pw_gid,
        "home": entry.pw_dir,
        "shell": entry.pw_shell,
        "groups": groups,
        "directory_groups": [gid for gid in groups if b"%d" % gid not in here],
        "silent_groups": [gid for gid in groups_before if gid not in groups and not answers(gid)],
    }


def home_fault(home: str) -> str:
    """Return why a home cannot be reached; "" if it is there, or closed to root as on NFS."""
    try:
        os.stat(home)  # noqa: PTH116
    except PermissionError:
        pass
    except OSError as failed:
        return failed.strerror or "it fails"
    return ""


def column(path: str, number: int) -> set[bytes] | None:
    """Return one column of a local file; None: it cannot be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            rows = (line.rstrip().split(b":") for line in file)
            return {row[number] for row in rows if len(row) > number}
    except OSError:
        return None


def answers(gid: int) -> bool:
    """Return True if a group can be looked up, so that its list of members can be believed."""
    try:
        grp.getgrgid(gid)
    except KeyError:
        return False
    return True


if __name__ == "__main__":
    found = account(sys.argv[1], [*map(int, sys.argv[2:])])
    print(json.dumps(found), flush=True)  # noqa: T201  its answer
    if "home" in found:
        print(json.dumps({"home_fault": home_fault(found["home"])}))  # noqa: T201
