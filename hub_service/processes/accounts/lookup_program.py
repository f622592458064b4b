"""Program that looks up a Unix account: `lookup_program.py NAME GROUP…` prints it as JSON.

A program of its own, since a thread in `getpwnam` cannot be ended while the account directory
(LDAP, SSSD) does not answer. Standard library only: it starts in 15 ms. Each GROUP was the
account's by that directory before: it is believed to be the account's no more if it answers itself.
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
    print(json.dumps(account(sys.argv[1], [*map(int, sys.argv[2:])])))  # noqa: T201  its answer
