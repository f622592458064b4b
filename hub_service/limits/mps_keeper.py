"""Keep the MPS daemon of one device, detached: jobs that are its clients outlive the service.

`python -P -m runai.hub_service.limits.mps_keeper DEVICE DIRECTORY` starts the daemon, tries whether
its limit holds, and says in DIRECTORY/state.json whether clients may come, or why not. Leaves at
SIGTERM and takes the daemon along. Started by `sharing`; a second one in a directory does nothing.
"""

import fcntl
import json
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from runai.hub_service.limits.memory_probe import try_limit
from runai.hub_service.limits.mps import MpsDaemon, MpsUnavailable

CANARY_MIB = 1024
"""Small against what is free on any device, or a full device passes for a limit that is kept."""

LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class KeeperState:
    """What a keeper says of its daemon; of a keeper that is gone, nothing is true."""

    pid: int
    created: float
    ready: bool = False
    reason: str = ""
    """Why clients may not come, as half a sentence; "" while it is being tried."""

    @classmethod
    def read(cls, directory: Path) -> "KeeperState | None":
        """Return what was said last, by a keeper that lives or by one that gave up."""
        try:
            told = cls(**json.loads((directory / "state.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        return told if told.reason or told.lives() else None

    def lives(self) -> bool:
        """Tell whether the keeper is still there."""
        try:
            process = psutil.Process(self.pid)
            same = process.create_time() == self.created
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def keep(device: str, directory: Path, stopped: threading.Event) -> None:
    """Keep a daemon until `stopped`, or until it cannot be kept."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        _say(directory)
        try:
            with MpsDaemon(device, directory) as daemon:
                _try(daemon)
                _say(directory, ready=True)
                _watch(daemon, stopped)
        except MpsUnavailable as error:
            _say(directory, reason=str(error))
        else:
            (directory / "state.json").unlink(missing_ok=True)


def _try(daemon: MpsDaemon) -> None:
    verdict, why = try_limit(CANARY_MIB, daemon.client_environment(memory_mib=CANARY_MIB))
    if verdict == "allowed":
        raise MpsUnavailable("its limit is not kept on this machine")
    if verdict == "unknown":
        raise MpsUnavailable(f"it could not be tried whether its limit is kept ({why})")


def _watch(daemon: MpsDaemon, stopped: threading.Event) -> None:
    while not stopped.wait(LOOK_EVERY_S):
        if not daemon.is_running:
            raise MpsUnavailable("its daemon ended by itself")


def _say(directory: Path, *, ready: bool = False, reason: str = "") -> None:
    me = psutil.Process()
    state = KeeperState(me.pid, me.create_time(), ready, reason)
    new = directory / "state.new"
    new.write_text(json.dumps(asdict(state)), encoding="utf-8")
    new.rename(directory / "state.json")


def main() -> int:
    """Keep what the arguments name."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopped.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keep(sys.argv[1], Path(sys.argv[2]), stopped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
