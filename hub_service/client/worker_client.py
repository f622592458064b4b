"""Client of elastic workers in pods: read the target, report status and end.

The kubelet renews the pod's token file, so each call reads it again.
"""

from pathlib import Path
from typing import TypeVar

from runai.hub_service.client.calls import API, Call
from runai.hub_service.client.transport import Transport
from runai.hub_service.wire.elastic_messages import Target, WorkerStatus
from runai.hub_service.wire.reports import EndedReply, EndedReport, StatusReport, TargetReply

T = TypeVar("T")

WAITS_S = 30.0
MARGIN_S = 15.0


class WorkerClient:
    """One worker's connection to the service; not thread-safe."""

    def __init__(self, url: str, token_file: Path, *, patience_s: float = 60.0) -> None:
        """Connect to the service at `url`; retry calls for `patience_s` while it is down.

        Every call raises Unavailable after that, and NotFound if the job is gone.
        """
        self._url = url
        self._token_file = token_file
        self._patience_s = patience_s
        self._token = ""
        self._transport: Transport | None = None

    def target(self, seen: int) -> Target | None:
        """Wait for a target newer than `seen`; return None after 30 s without one."""
        params = {"seen": str(seen), "timeout": str(WAITS_S)}
        path = f"{API}/worker/target"
        call = Call("GET", path, TargetReply, params, timeout_s=WAITS_S + MARGIN_S)
        return self._send(call).read()

    def report_status(self, status: WorkerStatus) -> None:
        """Report the worker's status."""
        self._send(Call("PUT", f"{API}/worker/status", type(None), body=StatusReport.of(status)))

    def end(self, exit_code: int) -> int:
        """Report the program's exit code; return the exit code for the pod."""
        report = EndedReport(exit_code=exit_code)
        return self._send(Call("POST", f"{API}/worker/end", EndedReply, body=report)).exit_code

    def close(self) -> None:
        """Close the connections."""
        if self._transport is not None:
            self._transport.close()

    def _send(self, call: Call[T]) -> T:
        token = self._token_file.read_text(encoding="utf-8").strip()
        if self._transport is None or token != self._token:
            self.close()
            self._token = token
            self._transport = Transport(self._url, token, self._patience_s)
        return self._transport.send(call)
