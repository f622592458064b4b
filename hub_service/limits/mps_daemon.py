"""Control daemon of NVIDIA's Multi-Process Service (MPS) for one device (tier T3).

Starts and stops the daemon, and builds its clients' environment. Calls block. No GPU setting is
changed. Source: docs.nvidia.com/deploy/mps, "Legacy MPS v2 Interface".
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final, Self

PROGRAM: Final = "nvidia-cuda-mps-control"
PATIENCE_S: Final = 10.0
_POLL_S: Final = 0.02
_SOCKET_PATH_MAX: Final = 100
"""A Unix socket's path may have 107 characters; the daemon creates several in its directory."""


class MpsUnavailable(Exception):
    """MPS is not available; the message is the reason."""


class MpsDaemon:
    """One MPS daemon in the foreground. It quits when its standard input closes, so with us."""

    def __init__(
        self,
        device: str,
        directory: Path,
        *,
        program: str = PROGRAM,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Set the device (its UUID) and a directory that no other daemon uses.

        Starting, answering and stopping may each take `patience_s`.

        Raises:
            MpsUnavailable: the directory's path is too long for the daemon's sockets.
        """
        self.device = device
        self.pipes = directory / "pipe"
        self.logs = directory / "log"
        self._program = program
        self._patience_s = patience_s
        self._process: subprocess.Popen[str] | None = None
        self._output: IO[str] | None = None
        if len(str(self.pipes.absolute())) > _SOCKET_PATH_MAX:
            raise MpsUnavailable(f"{self.pipes} is too long a path for the sockets of MPS")

    def __enter__(self) -> Self:
        """Start the daemon."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the daemon."""
        self.stop()

    @property
    def is_running(self) -> bool:
        """Return True while the daemon's process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the daemon and wait until it accepts commands; do nothing if it runs already.

        Raises:
            MpsUnavailable: the program is not installed, ended at once, or does not answer.
        """
        if self.is_running:
            return
        if shutil.which(self._program) is None:
            raise MpsUnavailable(f"{self._program} is not installed")
        for folder in (self.pipes, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A stale control file of a killed daemon would stop this one from starting.
        with contextlib.suppress(FileNotFoundError):
            (self.pipes / "control").unlink()
        self._output = (self.logs / "daemon.log").open("w", encoding="utf-8")
        self._process = subprocess.Popen(  # noqa: S603  NVIDIA's program
            [self._program, "-f"],
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # keeps the terminal's Ctrl+C from the daemon
        )
        deadline = time.monotonic() + self._patience_s
        while not (self.pipes / "control").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                why = self._last_log_line()
                self.stop()
                raise MpsUnavailable(f"{self._program} did not start: {why}")
            time.sleep(_POLL_S)

    def command(self, text: str) -> str:
        """Return the daemon's answer to a command, such as the PIDs of its servers.

        Raises:
            MpsUnavailable: the daemon does not run, does not answer, or refuses.
        """
        if not self.is_running:
            raise MpsUnavailable(f"{self._program} does not run for {self.device}")
        return self._send_command(text)

    def unhealthy_reason(self) -> str:
        """Return why this directory's daemon does not answer, as half a sentence; "" if it does.

        Works for a daemon that another process started, too.
        """
        try:
            self._send_command("get_server_list")
        except (MpsUnavailable, OSError) as error:
            return str(error)
        return ""

    def _send_command(self, text: str) -> str:
        """Send a command to the daemon; return its output, raise MpsUnavailable on failure."""
        try:
            completed = subprocess.run(  # noqa: S603  NVIDIA's program
                [self._program],
                input=f"{text}\n",
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=self._patience_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MpsUnavailable(f"{self._program} does not answer to {text}") from None
        if completed.returncode:
            raise MpsUnavailable(
                f"{self._program} refused {text}: {(completed.stderr or completed.stdout).strip()}"
            )
        return completed.stdout.strip()

    def limit_clients(self, memory_mib: int) -> None:
        """Set the memory limit per client for all servers started from now on.

        A client's own limit may only be tighter.

        Raises:
            MpsUnavailable: as `command`.
        """
        self.command(f"set_default_device_pinned_mem_limit 0 {memory_mib}M")

    def client_environment(
        self, *, memory_mib: int | None = None, thread_percentage: int | None = None
    ) -> Mapping[str, str]:
        """Return the environment of an MPS client, with optional limits; both are per process.

        The client sees the device as number 0, whatever its index on the machine.
        """
        variables = {
            "CUDA_VISIBLE_DEVICES": self.device,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes.absolute()),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs.absolute()),
        }
        if memory_mib is not None:
            variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={memory_mib}M"
        if thread_percentage is not None:
            variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(thread_percentage)
        return variables

    def stop(self) -> None:
        """Stop the daemon and its servers, by force if necessary; repeats do nothing."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                # Both the command and the end of its input make it quit.
                process.communicate("quit\n", timeout=self._patience_s)
            if process.poll() is None:
                process.kill()
                process.wait()
        if self._output is not None:
            self._output.close()
            self._output = None

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.client_environment()}

    def _last_log_line(self) -> str:
        log_lines = (
            (self.logs / "daemon.log").read_text(encoding="utf-8", errors="replace").split("\n")
        )
        lines = [line.strip() for line in log_lines if line.strip()]
        return lines[-1] if lines else f"no answer within {self._patience_s:g} s"
