"""What a pod of an elastic job says to the service and asks of it: three calls, by its own token.

The token is a file that the kubelet renews: it is read for each call. Used by `runai.elastic.pod`;
people and processes of the platform have `client`.
"""

from pathlib import Path
from typing import TypeVar

from runai.hub_service.client.calls import API, Call
from runai.hub_service.client.transport import Transport
from runai.hub_service.wire.elastic_messages import Status, Target
from runai.hub_service.wire.worker_schemas import EndedReply, EndedReport, StatusReport, TargetReply

T = TypeVar("T")

WAITS_S = 30.0
MARGIN_S = 15.0


class WorkerClient:
    """One worker's side of the protocol; each thread has its own."""

    def __init__(self, url: str, token_file: Path, *, patience_s: float = 60.0) -> None:
        """Speak to the service at `url`; calls are tried again for `patience_s` while it is away.

        Every call raises Unavailable after that, and NotFound where the job is gone.
        """
        self._url = url
        self._token_file = token_file
        self._patience_s = patience_s
        self._token = ""
        self._transport: Transport | None = None

    def target(self, seen: int) -> Target | None:
        """Wait for a target newer than the one seen; None: there was none for half a minute."""
        params = {"seen": str(seen), "timeout": str(WAITS_S)}
        path = f"{API}/worker/target"
        call = Call("GET", path, TargetReply, params, timeout_s=WAITS_S + MARGIN_S)
        return self._send(call).read()

    def tell(self, status: Status) -> None:
        """Tell how the worker is."""
        self._send(Call("PUT", f"{API}/worker/status", type(None), body=StatusReport.of(status)))

    def end(self, exit_code: int) -> int:
        """Ask how the pod is to end, now that the program has ended so."""
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
