"""Entry point of an elastic worker's pod: `python -m runai.elastic.pod -- python train.py`.

It runs the worker's program, relays messages between the service and the job's directory, and exits
as the service decides: many workers may finish, one of them completes the Job. The cluster makes it
the first process of the container; users do not call it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from runai.elastic.membership import LEAVE_EXIT_CODE
from runai.hub_service.client.worker_client import WorkerClient
from runai.hub_service.wire.elastic_messages import ElasticFiles, MessageError, WorkerStatus
from runai.hub_service.wire.errors import NotFound, RunaiError

_POLL_EVERY_S = 0.1
_RESEND_EVERY_S = 5.0
"""Period of resending an unchanged status: a restarted service has lost it."""
_RETRY_AFTER_S = 1.0
_MISUSE_EXIT_CODE = 64


class Relay:
    """A relay of messages between a worker's directory and the service."""

    def __init__(
        self, files: ElasticFiles, worker: str, connect: Callable[[], WorkerClient]
    ) -> None:
        """Set directory and worker; each of the two threads opens its own connection."""
        self._files = files
        self._worker = worker
        self._connect = connect
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the threads of both directions."""
        for work in (self._receive_targets, self._send_statuses):
            threading.Thread(target=work, daemon=True).start()

    def stop(self) -> None:
        """Stop relaying; the threads end with the process."""
        self._stopped.set()

    def _receive_targets(self) -> None:
        """Write each new target of the service to the directory, until the job is deleted."""
        client, written_gen = self._connect(), 0
        while not self._stopped.is_set():
            try:
                target = client.target(written_gen)
            except NotFound:
                return  # the job and its pod are deleted
            except (RunaiError, OSError) as error:
                _print(f"the service cannot be asked who trains: {error}")
                self._stopped.wait(_RETRY_AFTER_S)
                continue
            if target is not None and target.gen > written_gen:
                self._files.write_target(target)
                written_gen = target.gen

    def _send_statuses(self) -> None:
        """Send each new status to the service, and an unchanged one every 5 s."""
        client = self._connect()
        sent: WorkerStatus | None = None
        sent_at = float("-inf")
        while not self._stopped.wait(_POLL_EVERY_S):
            try:
                status = self._files.status(self._worker)
            except (MessageError, OSError):
                continue
            if status is None or (status == sent and time.monotonic() < sent_at + _RESEND_EVERY_S):
                continue
            try:
                client.report_status(status)
            except NotFound:
                return
            except (RunaiError, OSError) as error:
                _print(f"the service cannot be told how it goes: {error}")
                self._stopped.wait(_RETRY_AFTER_S)
                continue
            sent, sent_at = status, time.monotonic()


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run a worker's program; return the pod's exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given[1:] if given[:1] == ["--"] else given
    missing = [name for name in _REQUIRED if not environ.get(name)]
    if missing or not command:
        _print(f"only a platform starts this ({', '.join(missing) or 'no program'} is missing)")
        return _MISUSE_EXIT_CODE

    def connect() -> WorkerClient:
        return WorkerClient(environ["RUNAI_API_URL"], Path(environ["RUNAI_WORKER_TOKEN_FILE"]))

    files = ElasticFiles(Path(environ["RUNAI_ELASTIC_DIR"]))
    relay = Relay(files, environ["RUNAI_WORKER"], connect)
    try:
        process = subprocess.Popen(command)  # noqa: S603  the user's command
    except OSError as error:
        _print(f"{command[0]} cannot be started: {error}")
        return _request_exit_code(connect(), 127)

    def forward_signal(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward_signal)
    relay.start()
    code = process.wait()
    relay.stop()
    return _request_exit_code(connect(), code if code >= 0 else 128 - code)


_REQUIRED = ("RUNAI_API_URL", "RUNAI_ELASTIC_DIR", "RUNAI_WORKER", "RUNAI_WORKER_TOKEN_FILE")


def _request_exit_code(client: WorkerClient, code: int) -> int:
    """Return the exit code that the service decides; a worker that left exits at once.

    The pod stays while the service does not answer.
    """
    stop_requested = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop_requested.set())
    while code != LEAVE_EXIT_CODE and not stop_requested.is_set():
        try:
            return client.end(code)
        except NotFound:
            return code
        except (RunaiError, OSError) as error:
            _print(f"the service cannot be asked how to end: {error}")
            stop_requested.wait(_RETRY_AFTER_S)
    return code


def _print(line: str) -> None:
    print(f"runai.elastic: {line}", file=sys.stderr, flush=True)  # noqa: T201  its output


if __name__ == "__main__":
    sys.exit(main())
