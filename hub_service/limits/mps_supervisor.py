"""Supervisor of one device's MPS daemon, detached because its clients outlive the service.

`python -P -s -m runai.hub_service.limits.mps_supervisor DEVICE DIRECTORY` starts it, tests its
memory limit, and writes to DIRECTORY/state.json whether clients may connect, or why not. SIGTERM
stops the daemon and the supervisor. A second supervisor in the same directory exits at once.
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
from runai.hub_service.limits.mps_daemon import MpsDaemon, MpsUnavailable

CANARY_MIB = 1024
"""Limit for the test, small compared to the free memory of any device. On a full device every
allocation fails, as if the limit held."""

POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class SupervisorState:
    """State of an MPS daemon, from its supervisor; valid only while that runs."""

    pid: int
    created: float
    ready: bool = False
    reason: str = ""
    """Why clients may not connect, as half a sentence; "" during the test and while ready."""

    @classmethod
    def read(cls, directory: Path) -> "SupervisorState | None":
        """Return the state of a supervisor that runs or has failed with a reason."""
        try:
            state = cls(**json.loads((directory / "state.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        return state if state.reason or state.lives() else None

    def lives(self) -> bool:
        """Return True if the supervisor's process runs."""
        try:
            process = psutil.Process(self.pid)
            same = process.create_time() == self.created
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def run_daemon(device: str, directory: Path, stopped: threading.Event) -> None:
    """Run a daemon until `stopped` is set, or until the daemon fails."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        _write_state(directory)
        try:
            with MpsDaemon(device, directory) as daemon:
                _test_limit(daemon)
                _write_state(directory, ready=True)
                _watch(daemon, stopped)
        except MpsUnavailable as error:
            _write_state(directory, reason=str(error))
        else:
            (directory / "state.json").unlink(missing_ok=True)


def _test_limit(daemon: MpsDaemon) -> None:
    verdict, why = try_limit(CANARY_MIB, daemon.client_environment(memory_mib=CANARY_MIB))
    if verdict == "allowed":
        raise MpsUnavailable("its limit is not kept on this machine")
    if verdict == "unknown":
        raise MpsUnavailable(f"it could not be tried whether its limit is kept ({why})")


def _watch(daemon: MpsDaemon, stopped: threading.Event) -> None:
    while not stopped.wait(POLL_S):
        if not daemon.is_running:
            raise MpsUnavailable("its daemon ended by itself")


def _write_state(directory: Path, *, ready: bool = False, reason: str = "") -> None:
    me = psutil.Process()
    state = SupervisorState(me.pid, me.create_time(), ready, reason)
    new = directory / "state.new"
    new.write_text(json.dumps(asdict(state)), encoding="utf-8")
    new.rename(directory / "state.json")


def main() -> int:
    """Run the supervisor of the device and directory in the arguments."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopped.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run_daemon(sys.argv[1], Path(sys.argv[2]), stopped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
