"""Checks of a platform on this machine: programs, files and kernel; they change nothing."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from runai.hub_service.cli.doctor import Finding
from runai.hub_service.processes import own_process
from runai.hub_service.processes.accounts import account_limits
from runai.hub_service.processes.accounts.account_states import SERVICE, hindrances
from runai.hub_service.processes.accounts.known_accounts import KnownAccounts
from runai.hub_service.processes.shell_environment import (
    HAS_PASSWORD,
    UNUSABLE,
    passed_on,
    readable,
    refused_proxies,
)
from runai.hub_service.processes.tmp_dirs import TmpDirs
from runai.hub_service.wire.errors import Conflict, RunaiError, Unavailable

WRITTEN: Final = (
    "secrets",
    "secrets/*",
    "*.sqlite*",
    "*.lock",
    "*.port",
    "hub.log*",
    "last_start.json",
)
"""Files of a data directory that its platform writes."""
MIN_FREE_BYTES: Final = 1024**3
FEW_FREE_BYTES: Final = 5 * 1024**3
MIN_FREE_FILES: Final = 10_000
FEW_FREE_FILES: Final = 100_000
HIDDEN: Final = frozenset({"1", "2", "4", "noaccess", "invisible", "ptraceable"})
"""Values of /proc's `hidepid` that hide the command lines of other accounts."""
HUB_FROM: Final = (5, 4)
HUB_BELOW: Final = (7,)


def check_command() -> Finding:
    """Check that the shell's `runai` is ours; other products have a command of that name."""
    subject = "command"
    ours = Path(sys.executable).parent / "runai"
    found = shutil.which("runai")
    if found is None:
        text = f"no `runai` is on the PATH; ours is {ours}"
        return Finding("note", subject, text, f'export PATH="{ours.parent}:$PATH"')
    if ours.exists() and not Path(found).samefile(ours):
        text = f"a shell runs {found}, which is not this installation's ({ours})"
        mend = f'export PATH="{ours.parent}:$PATH"; another program of the name goes elsewhere'
        return Finding("failure", subject, text, mend)
    return Finding("ok", subject, f"`runai` is {found}")


def check_hub_version() -> Iterator[Finding]:
    """Check that the installed JupyterHub, if any, is supported and complete."""
    subject = "JupyterHub"
    try:
        found = version("jupyterhub")
    except PackageNotFoundError:
        yield Finding("note", subject, "not installed here: only the client is")
        return
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if not HUB_FROM <= numbers < HUB_BELOW:
        mend = "pip install 'jupyterhub>=5.4,<7'"
        yield Finding("failure", subject, f"version {found} is not supported", mend)
        return
    missing = [name for name in ("jupyterlab", "jupyterhub", "uvicorn") if find_spec(name) is None]
    if missing:
        mend = "pip install 'jupyter-runai[hub]'"
        yield Finding("failure", subject, f"{' and '.join(missing)} is not installed", mend)
        return
    yield Finding("ok", subject, f"version {found}")


def check_accounts(root: Path) -> Iterator[Finding]:
    """Check that the platform can read its accounts and write its own files."""
    # Needs the hub extra, which a client lacks.
    from runai.embedded.accounts.accounts import Accounts  # noqa: PLC0415
    from runai.embedded.data_directory import DataDirectory  # noqa: PLC0415

    owner = root.stat().st_uid
    written = sorted({path for name in WRITTEN for path in root.glob(name)})
    if foreign := [str(path) for path in written if path.lstat().st_uid != owner]:
        names = " ".join(foreign)
        text = f"the platform's account (uid {owner}) does not own {names}"
        yield Finding("failure", "ownership", text, f"sudo chown {owner} {names}")
    try:
        Accounts(DataDirectory(root)).all()
    except RunaiError as failed:
        yield Finding("failure", "accounts", failed.message.rstrip("."), failed.hint)


def check_storage(root: Path, databases: Sequence[str]) -> Iterator[Finding]:
    """Check the databases' integrity and schema version, and the free disk space."""
    # Needs the hub extra, which a client lacks.
    from runai.embedded.backup.restore import unknown_schema  # noqa: PLC0415
    from runai.hub_service.clusters.local.data_dir_checks import check_tables  # noqa: PLC0415
    from runai.hub_service.sqlite import files  # noqa: PLC0415

    subject = "databases"
    paths = [root / name for name in databases if (root / name).exists()]
    damaged = {path: wrong for path in paths if (wrong := files.invalid_reason(path))}
    for path, wrong in damaged.items():
        mend = "Stop the platform, then: runai restore BACKUP"
        if "may not" in wrong:
            mend = f"chown or chmod it back: ls -l {path}"
        yield Finding("failure", subject, f"{path} {wrong}", mend)
    unknown = {p: name for p in paths if p not in damaged and (name := unknown_schema(p))}
    for path, name in unknown.items():
        error = files.newer(path, name)
        yield Finding("failure", subject, error.message.rstrip("."), error.hint)
    try:
        check_tables(root)
    except Unavailable as failed:
        yield Finding("failure", subject, failed.message.rstrip("."), failed.hint)
    else:
        if paths and not damaged and not unknown:
            yield Finding("ok", subject, f"{', '.join(path.name for path in paths)}: sound")
    free = shutil.disk_usage(root).free
    text = f"{free / 1024**3:.1f} GiB are free for {root}"
    if free < MIN_FREE_BYTES:
        yield Finding("failure", "disk", text, "Make room: what cannot be stored is refused.")
    elif free < FEW_FREE_BYTES:
        yield Finding("note", "disk", text, "Logs and checkpoints are what grows.")
    else:
        yield Finding("ok", "disk", text)
    yield from check_room_for_files(root)


def check_room_for_files(root: Path) -> Iterator[Finding]:
    """Check the disk's free inodes: millions of empty files use them up before the bytes."""
    disk = os.statvfs(root)
    if not disk.f_files:
        return  # a file system without an inode table
    text = f"{disk.f_favail:,} more files fit beside {root}"
    if disk.f_favail < MIN_FREE_FILES:
        mend = f"What has so many? du --inodes -d 3 {root} | sort -n | tail; a quota bounds whose."
        yield Finding("failure", "files", text, mend)
    elif disk.f_favail < FEW_FREE_FILES:
        yield Finding("note", "files", text, "Small files of jobs are what grows.")
    else:
        yield Finding("ok", "files", text)


def check_tmp_dirs(root: Path) -> Iterator[Finding]:
    """Report the temporary folders that ended jobs and sessions have left."""
    if left := " ".join(sorted(map(str, TmpDirs(root).left()))):
        text = f"temporary folders of ended jobs and sessions are still there: {left}"
        mend = "The platform's next start tries again; findmnt names file systems below them."
        yield Finding("note", "temporary", text, mend)


def check_command_lines(mounts: Path = Path("/proc/self/mounts")) -> Finding:
    """Check that accounts cannot see one another's command lines.

    It matters only where each user has an account.
    """
    subject = "command lines"
    mounted = mounts.read_text().splitlines() if mounts.exists() else []
    proc = [line.split() for line in mounted if " /proc proc " in line]
    options = proc[-1][3].split(",") if proc else []
    if any(option.removeprefix("hidepid=") in HIDDEN for option in options):
        return Finding("ok", subject, "of others' programs nobody sees the arguments")
    text = "every account sees the arguments of everybody's jobs (`ps`): no place for secrets"
    mend = "mount -o remount,hidepid=2 /proc, and in /etc/fstab: proc /proc proc hidepid=2 0 0"
    return Finding("note", subject, text, mend)


def check_account_limits(service: str = account_limits.SERVICE) -> Finding:
    """Report whose limits jobs and sessions have where each user has an account."""
    text = f"jobs and sessions have the limits of `runai up`: there is no /etc/pam.d/{service}"
    if account_limits.has_service(service):
        text = f"jobs and sessions have the limits of limits.conf, by /etc/pam.d/{service}"
    return Finding("ok", "account limits", text)


def check_descriptors(could_have: int) -> Finding:
    """Check that the descriptor limit suffices for open pages and jobs."""
    text = f"a process can have {could_have:,} files, sockets and processes open at once"
    if could_have < own_process.MIN_DESCRIPTORS:
        mend = (
            f"In its systemd unit: LimitNOFILE=65536 (at least {own_process.MIN_DESCRIPTORS:,})."
            " From a shell: `* hard nofile 65536` in /etc/security/limits.conf, and a new login."
        )
        return Finding("failure", "descriptors", text, mend)
    return Finding("ok", "descriptors", text)


def check_groups(proc: Path = Path("/proc")) -> Finding:
    """Check that the agent can create control groups, for hard limits and process tracking."""
    subject = "control groups"
    if find_spec("psutil") is None:
        return Finding("note", subject, "not looked at: only the client is installed here")
    # Needs the hub extra, which a client lacks.
    from runai.hub_service.limits import cgroups  # noqa: PLC0415

    if why := cgroups.why_none(proc):
        text = (
            f"{why}: memory limits of shared devices are soft, and jobs' processes are counted by"
            " their supervisors alone, every second"
        )
        mend = "Boot with the unified hierarchy; of a systemd unit set Delegate=yes."
        return Finding("note", subject, text, mend)
    return Finding("ok", subject, "version 2, and ours to make")


def check_requests(root: Path, proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Report whether a running platform holds workloads to the CPU and memory they request."""
    # Needs the hub extra, which a client lacks.
    from runai.hub_service.clusters.local.processes.request_groups import (  # noqa: PLC0415
        SETUP_HINT,
        delegated_group,
    )
    from runai.hub_service.clusters.local.store.cluster_lock import LOCK, holder  # noqa: PLC0415
    from runai.hub_service.limits.cgroups import GroupsUnavailable  # noqa: PLC0415

    subject = "requests"
    owner = holder(root / LOCK)
    if owner is None or not owner.pid:
        return
    try:
        group = delegated_group(owner.pid, proc)
    except GroupsUnavailable as why:
        text = f"requested CPU and memory are not enforced: {why}"
        yield Finding("note", subject, text, SETUP_HINT)
    else:
        yield Finding("ok", subject, f"requested CPU and memory are enforced below {group}")


def check_shell_environment(root: Path, proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Report which variables a running platform passes on; values of proxies stay out."""
    # Needs the hub extra, which a client lacks.
    from runai.hub_service.clusters.local.store.cluster_lock import LOCK, holder  # noqa: PLC0415

    owner = holder(root / LOCK)
    try:
        own = _environment(proc / str(owner.pid if owner else 0))
        hub = proc / own.get("RUNAI_HUB_PID", str(owner.pid if owner else 0))
        environ = _environment(hub)
        lines = (hub / "status").read_text().splitlines()
    except OSError:  # none runs, or as another account
        return
    subject, passed = "environment", passed_on(environ)
    status = dict(line.partition(":")[::2] for line in lines)
    uid, groups = int(status["Uid"].split()[1]), f"{status['Gid']} {status['Groups']}".split()
    who_cannot = "the platform's account cannot"
    if environ.get("RUNAI_SYSTEM_USERS") == "1":
        who_cannot, uid, groups = "not every user can", -1, []  # -1 is of no group, owns nothing
    usable = readable(passed, uid, lambda: [*map(int, groups)])
    names = ", ".join(sorted(usable)) or "nothing"
    yield Finding("ok", subject, f"sessions and jobs inherit from the platform's shell: {names}")
    if unreadable := ", ".join(f"{name}={passed[name]}" for name in passed if name not in usable):
        text = f"{who_cannot} read {unreadable}: left out where it cannot be read"
        mend = "Name a file by its whole path, or chmod o+r FILE, and o+x its folders."
        yield Finding("note", subject, text, mend)
    for name, why in refused_proxies(environ).items():
        yield Finding("note", subject, f"left out: the address in {name} {why}", _MENDS[why])


_MENDS: Final = {
    HAS_PASSWORD: "If users may know it: runai up --share-proxy-password",
    UNUSABLE: "Write http://HOST:PORT; for socks5:// install 'httpx[socks]' beside the platform.",
}


def _environment(process: Path) -> dict[str, str]:
    entries = os.fsdecode((process / "environ").read_bytes()).split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


CANNOT_START: Final = b"The GPU service cannot start. "
"""Begin of the line that a service writes to hub.log as it ends."""
STARTS: Final = b"Starting service 'runai'"
TAIL_BYTES: Final = 256 * 1024


def check_start(root: Path) -> Iterator[Finding]:
    """Report why the service of a running hub does not start, as hub.log says it."""
    # Needs the hub extra, which a client lacks.
    from runai.hub_service.clusters.local.store.cluster_lock import (  # noqa: PLC0415
        HUB_LOCK,
        LOCK,
        holder,
    )

    log = root / "hub.log"
    if holder(root / HUB_LOCK) is None or holder(root / LOCK) is not None or not log.exists():
        return
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        _, marker, rest = file.read().rpartition(CANNOT_START)
    if marker and rest.count(STARTS) <= 1:  # else a later one has not failed so
        why = rest.partition(b"\n")[0].decode(errors="replace").strip()
        text = f"it cannot start, and is tried again every half minute: {why}"
        yield Finding("failure", "service", text, "Mend that; the next try begins by itself.")


def check_settings(root: Path) -> Iterator[Finding]:
    """Report what the last start found in the admin's jupyterhub_config.py, which it executed."""
    # Needs the hub extra, which a client lacks.
    from runai.embedded.data_directory import DataDirectory  # noqa: PLC0415

    subject, written = "settings", DataDirectory(root).last_start
    try:
        found = json.loads(written.read_bytes())
    except FileNotFoundError:  # no start yet
        return
    except (OSError, ValueError) as failed:
        yield Finding("note", subject, f"{written} cannot be read: {failed}")
        return
    if refused := found.get("refused"):
        text = f"the last start was refused: {refused.rstrip('.')}"
        yield Finding("failure", subject, text, found.get("hint", ""))
    if added := found.get("added"):
        text = f"the last start added what jupyterhub_config.py leaves out: {'; '.join(added)}"
        mend = "Nothing has to be done. Adding to a list instead of assigning it keeps ours."
        yield Finding("note", subject, text, mend)
    if without_gpu := found.get("without_gpu"):
        mend = "Leave the setting out, or name a subclass of RunaiLocalSpawner."
        yield Finding("note", "sessions", without_gpu.rstrip("."), mend)


def check_expired(root: Path) -> Iterator[Finding]:
    """Report the known Unix accounts that start nothing: PAM does not admit them."""
    # Needs the hub extra, which a client lacks.
    from runai.embedded.data_directory import DataDirectory  # noqa: PLC0415

    service = SERVICE
    with suppress(OSError, ValueError):
        written = json.loads(DataDirectory(root).last_start.read_bytes())
        service = written.get("pam_service", SERVICE)
    if not service:
        return
    names = [known.name for known in KnownAccounts(root).all()]
    for each in asyncio.run(hindrances(service, names)):
        text = f"{each.message.rstrip('.')}: nothing new starts, what runs goes on"
        yield Finding("note", "expired", text, each.hint)


_SUBJECT: Final = "cluster"


def check_ownership(root: Path) -> Iterator[Finding]:
    """Check the cluster: its place, its completeness, and that its lock's holder runs."""
    # Needs the hub extra, which a client lacks.
    from runai.hub_service.clusters.local.data_dir_checks import check_place  # noqa: PLC0415
    from runai.hub_service.clusters.local.store.cluster_lock import (  # noqa: PLC0415
        LOCK,
        check_is_whole,
        holder,
        waiting_pids,
    )

    try:
        check_is_whole(root)
        check_place(root)
    except Conflict as refused:
        yield Finding("failure", _SUBJECT, refused.message.rstrip("."), refused.hint)
    except Unavailable:
        pass  # the check of the storage reports it
    owner = holder(root / LOCK)
    if owner is None:
        return
    text = f"it is open in {owner}"
    pids_text = ", ".join(str(pid) for pid in waiting_pids(root / LOCK))
    if owner.is_frozen:
        mend = f"kill -CONT {owner.pid} has it go on; after kill -TERM {owner.pid} it ends by that."
        yield Finding("failure", _SUBJECT, f"{text}, which is frozen: nothing is decided", mend)
    elif pids_text and owner.pid:
        text = f"{text}, for which process {pids_text} waits"
        mend = f"Is it not about to end? Then it hangs: {owner.stop_hint} Else look again."
        yield Finding("failure", _SUBJECT, text, mend)
    else:
        yield Finding("ok", _SUBJECT, text)
