"""Start of a worker: exec its program in a fork, or report the failure.

Standard library only, like all of the supervisor's program (`subreaper.py`).
"""

import contextlib
import ctypes
import errno
import os
import resource
import signal
import time
import warnings  # noqa: F401  exec imports it, in a child that may not read our files any more
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from runai.hub_service.processes import path_faults
    from runai.hub_service.processes.accounts import account_limits
else:  # in the subreaper's program, which extends sys.path
    import path_faults
    from accounts import account_limits

PR_SET_PDEATHSIG = 1
CANNOT_START = 127
"""Exit code of a fork that could not become the program, as a shell's."""

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""Errors of a full disk. The start is retried, because the job has not failed."""
NOT_NOW = NO_ROOM | {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
"""Likewise, errors of a machine that lacks a process, memory or descriptor. Some may become
free."""
START_TIME_END = b"\0"
"""End of the time of a start, in the answer of its fork; no text of an error contains it."""
AGAIN_EVERY_S = 1.0
ROOM_S = 60.0

prctl = ctypes.CDLL(None, use_errno=True).prctl


class StartOutcome(NamedTuple):
    """Outcome of a start; the process is not reaped."""

    pid: int
    """0 if there is none."""
    why: str = ""
    """Why its program does not run; "" if it does."""
    lacks_room: bool = False
    """True if a retry may succeed."""
    is_home_away: bool = False
    """True if the account's home is missing or cannot be reached now."""
    start_mtime_ns: int = 0
    """Time of the start in nanoseconds, by the clock of the checkpoint directory's file system; 0:
    not known."""

    def reap(self) -> None:
        """Reap a process that could not become the program."""
        if self.pid:
            os.waitpid(self.pid, 0)


def start(spec: dict[str, Any], environment: dict[str, str], output: int) -> StartOutcome:
    """Fork the worker; return when its program runs, or cannot."""
    answer_fd, answer_write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    try:
        worker = os.fork()
    except OSError as error:
        os.close(answer_fd)
        os.close(answer_write)
        why = f"cannot start {spec['command'][0]}: {error.strerror}"
        return StartOutcome(0, why, error.errno in NOT_NOW)
    if worker == 0:
        become_worker(spec, environment, output, answer_write, parent)
    os.close(answer_write)
    text = b""
    while piece := os.read(answer_fd, 4096):  # EOF when exec has closed the other end
        text += piece
    os.close(answer_fd)
    start_mtime_ns, _, text = text.rpartition(START_TIME_END)
    number, away, why = (*text.decode(errors="replace").split(" ", 2), "", "")[:3]
    lacks_room = bool(number) and int(number) in NOT_NOW
    return StartOutcome(worker, why, lacks_room, away == "1", int(start_mtime_ns or 0))


def fork_patiently() -> int:
    """Fork; while the machine has no free process, retry for ROOM_S as for workers.

    Raises:
        OSError: there was none in all that time.
    """
    until = time.monotonic() + ROOM_S
    while True:
        try:
            return os.fork()
        except OSError as error:
            if error.errno not in NOT_NOW or time.monotonic() > until:
                raise
        time.sleep(AGAIN_EVERY_S)


def become_worker(
    spec: dict[str, Any], environment: dict[str, str], output: int, answer_fd: int, parent: int
) -> None:
    """Turn the forked child into the worker's program; never returns."""
    is_prepared = False
    try:
        os.setsid()
        set_signals_right()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        join_group(spec)
        limit_open_files(spec)
        limit_account(spec)
        change_account(spec)
        die_with(parent)
        make_private_files(spec)
        prepare_python(spec, environment)
        report_start_time(spec, answer_fd)
        os.umask(spec["umask"])
        os.chdir(spec["workdir"])
        report_missing_files(spec)
        is_prepared = True
        os.execvpe(spec["command"][0], spec["command"], environment)  # noqa: S606  no shell
    except OSError as error:
        why, is_home_away = failure_reason(spec, error, is_prepared=is_prepared)
        os.write(answer_fd, f"{error.errno or 0} {is_home_away:d} {why}".encode(errors="replace"))
    except account_limits.NoSession as error:
        os.write(answer_fd, f"0 0 cannot start: {error}".encode())
    except BaseException as error:  # noqa: BLE001  nothing may return into the parent's code
        os.write(answer_fd, f"0 0 cannot start: {type(error).__name__}: {error}".encode())
    finally:
        os._exit(CANNOT_START)


def failure_reason(spec: dict[str, Any], error: OSError, *, is_prepared: bool) -> tuple[str, bool]:
    """Return why the fork cannot become the program, and True if the home is away."""
    program, number, path = spec["command"][0], error.errno or 0, os.fsdecode(error.filename or "")
    # For a program that is not on the PATH, exec reports the last path it tried.
    if not path or (is_prepared and number != errno.EACCES):
        return f"cannot start {program}: {os.strerror(number)}", False
    is_service_account = spec["uid"] is None
    user = path_faults.account_name(os.geteuid()) if is_service_account else spec["user"]
    home, use = spec["home"], os.X_OK if is_prepared else os.W_OK
    path = os.path.join(spec["workdir"], path)  # noqa: PTH118
    fault = path_faults.path_fault(path, number, user, home, use)
    what = f"in {path}" if path == spec["workdir"] else ""
    return path_faults.cannot_start(program if is_prepared else what, fault), fault.is_home_away


def set_signals_right() -> None:
    """Reset all signals to their defaults, as programs expect (in a fork)."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # Python ignores SIGPIPE.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)


def limit_open_files(spec: dict[str, Any]) -> None:
    """Set the soft limit that programs expect, in a fork. Ours may be too high for `select`."""
    if open_files := spec["open_files"]:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))


def limit_account(spec: dict[str, Any]) -> None:
    """Set the limits that a PAM session gives the worker's account (in a fork).

    Raises:
        account_limits.NoSession: PAM refuses one.
    """
    if service := spec["pam_service"]:
        limits = account_limits.of_account(spec["user"], spec["open_files"], service)
        limits.apply()


def join_group(spec: dict[str, Any]) -> None:
    """Join the control group that holds the worker to its request, in a fork, or write why not."""
    if path := spec["group"]:
        try:
            with open(path, "w", encoding="ascii") as file:  # noqa: PTH123
                file.write("0")
        except OSError as error:
            os.write(
                2, f"runai: CPU and memory are not enforced: {path}: {error.strerror}\n".encode()
            )


def change_account(spec: dict[str, Any]) -> None:
    """Change to the worker's account, if it is not the service's (in a fork)."""
    if spec["uid"] is not None:
        os.setgroups(spec["groups"])
        os.setgid(spec["gid"])
        os.setuid(spec["uid"])


def make_private_files(spec: dict[str, Any]) -> None:
    """Create the worker's directories and files, closed to all other accounts (in a fork)."""
    os.umask(0o077)
    for folder in spec["directories"]:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        with contextlib.suppress(PermissionError):  # a link to a directory of another account
            os.chmod(folder, 0o700)  # noqa: PTH101
    for path, text in spec["files"].items():
        try:
            with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
                os.fchmod(file.fileno(), 0o600)
                file.write(text)
        except OSError as error:  # an open file's errors have no name
            error.filename = path
            raise


def prepare_python(spec: dict[str, Any], environment: dict[str, str]) -> None:
    """Make the user's Python environment if it is missing, in a fork; without one change PATH.

    The program's sentence about it goes to the worker's output.
    """
    python = spec["python"]
    if not python or python_is_there(python):
        return
    maker = os.fork()
    if not maker:
        python_environment = {
            k: v for k, v in environment.items() if k in {"PATH", "LD_LIBRARY_PATH"}
        }
        try:
            os.execve(python["make"][0], python["make"], python_environment)  # noqa: S606  no shell
        finally:  # an account that may not run the platform's Python
            os._exit(CANNOT_START)
    if os.waitpid(maker, 0)[1]:
        environment.update(python["without"])


def python_is_there(python: dict[str, Any]) -> bool:
    """Return True if the environment has the files as they should be, and a program."""
    try:
        for path, text in python["files"].items():
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                if file.read() != text:
                    return False
    except (OSError, ValueError):
        return False
    return os.access(python["program"], os.X_OK)


def report_start_time(spec: dict[str, Any], answer: int) -> None:
    """Report the time at the checkpoint directory, in a fork. A directory without one is no error.

    A disk's clock may differ from the machine's, and files are compared with it at the end.
    """
    if place := spec["checkpoint_dir"]:
        with contextlib.suppress(OSError):
            os.write(answer, b"%d%b" % (touch(place), START_TIME_END))


def report_missing_files(spec: dict[str, Any]) -> None:
    """Write a line, in a fork, for each file of the command that is there no more."""
    for name in spec["expected"]:
        try:
            os.stat(name)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            os.write(2, f"runai: {name} is gone; it was there before\n".encode(errors="replace"))
        except OSError:
            pass  # it may be there


def touch(folder: str) -> int:
    """Set a directory's mtime to now, and return it: nanoseconds by its file system's clock.

    Raises:
        OSError: it is a link, or cannot be changed.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.utime(fd)
        return os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)


def die_with(parent: int) -> None:
    """Have the kernel kill this fork with its parent. A change of account clears that."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
