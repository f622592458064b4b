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
import re
import sys
from collections.abc import Sequence
from typing import Any

ACCOUNTS = "/etc/passwd"
GROUPS = "/etc/group"
ETC = "/etc"
PAM = ("login", "common-session", "system-login", "postlogin")
"""Files of /etc/pam.d that a login reads, in Linux distributions."""


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
        "umask": login_umask(entry),
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


def login_umask(entry: pwd.struct_passwd) -> str:
    """Return the umask of an account's login, in three octal digits, as pam_umask finds it.

    The order is: GECOS field, options of pam_umask, login.defs, default/login. The owner keeps all
    rights.
    """
    if own := umask_option(entry.pw_gecos.split(",")):
        return own
    options = pam_options()
    mask = umask_option(options) or defined("login.defs") or defined("default/login") or "022"
    if "usergroups" in options and entry.pw_uid and has_group_of_its_own(entry):
        return f"00{mask[-1]}"  # the group's rights become the owner's
    return mask


def has_group_of_its_own(entry: pwd.struct_passwd) -> bool:
    """Return True if an account's first group has its name."""
    try:
        return grp.getgrgid(entry.pw_gid).gr_name == entry.pw_name
    except KeyError:
        return False


def pam_options() -> list[str]:
    """Return the options of pam_umask in a login's sessions."""
    line = re.compile(r"^-?session\s.*\bpam_umask\.so\b(.*)$", re.MULTILINE)
    for name in PAM:
        if found := line.search(text(f"pam.d/{name}")):
            return found[1].lower().split()
    return []


def umask_option(options: Sequence[str]) -> str:
    """Return the mask of an option such as umask=002; "" without one."""
    pairs = (option.strip().lower().partition("=") for option in options)
    return next((mask for key, _, value in pairs if key == "umask" and (mask := octal(value))), "")


def defined(file: str) -> str:
    """Return the umask that a file of /etc defines; "" if it defines none."""
    found = re.search(r"^\s*UMASK[\s=]+(\S+)", text(file), re.MULTILINE | re.IGNORECASE)
    return octal(found[1]) if found else ""


def octal(value: str) -> str:
    """Return the rights of group and others in three octal digits; "" for other text.

    >>> octal("0027"), octal("777"), octal("none")
    ('027', '077', '')
    """
    found = re.match(r"[0-7]{1,4}", value)
    return f"{int(found[0], 8) & 0o077:03o}" if found else ""


def text(file: str) -> str:
    """Return a file of /etc; "" if it cannot be read."""
    try:
        with open(f"{ETC}/{file}", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123
            return stream.read()
    except OSError:
        return ""


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
