"""The platform's event stream: one daemon thread per kernel notifies all listeners.

A thread, since it must run while a cell runs. The client renews broken connections; when it gives
up, listeners get `ConnectionLost`, and the thread retries while a listener remains.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass

from runai.hub_service.wire.errors import (
    Forbidden,
    InvalidRequest,
    RunaiError,
    Unauthenticated,
)
from runai.hub_service.wire.schemas import Overview


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A lost event stream; `text` is the reason."""

    text: str
    retrying: bool


StreamUpdate = Overview | ConnectionLost
Listener = Callable[[StreamUpdate], None]

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 15.0


class Live:
    """The events of one platform, shared by all views of a kernel. Safe to use from any thread."""

    def __init__(
        self,
        events: Callable[[], Generator[Overview]],
        version: Callable[[], int] | None = None,
    ) -> None:
        """Store the stream's factory; the first listener opens the stream.

        `version` changes when a refusal may be over, such as after a login; None: it never is.
        """
        self._events, self._version = events, version
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._latest: StreamUpdate | None = None

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each event on the stream's thread; return a function that ends this.

        The latest event, if any, is passed at once, on the caller's thread.
        """
        with self._lock:
            self._listeners.append(listener)
            latest = self._latest
            self._wake.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._read, name="runai-live", daemon=True)
                self._thread.start()
        if latest is not None:
            listener(latest)

        def stop_listening() -> None:
            with self._lock, suppress(ValueError):
                self._listeners.remove(listener)
                if not self._listeners:
                    self._wake.set()

        return stop_listening

    def close(self) -> None:
        """Remove all listeners; the thread ends at its next event."""
        with self._lock:
            self._listeners.clear()
            self._wake.set()

    def _read(self) -> None:
        """Pass the stream's events to the listeners, until none remains."""
        retry_s = FIRST_RETRY_S
        while not self._detach_if_unused():
            try:
                with closing(self._events()) as events:
                    for overview in events:
                        retry_s = FIRST_RETRY_S
                        self._notify(overview)
                        if self._detach_if_unused():
                            return
            except RunaiError as error:
                # A retry does not repair a revoked token or a wrong setting: log in, or rerun.
                is_refused = isinstance(error, Unauthenticated | Forbidden | InvalidRequest)
                version = self._version() if self._version else 0
                self._notify(ConnectionLost(str(error), retrying=not is_refused))
                if is_refused:
                    if not self._has_new_login(version):
                        return
                    continue
            self._wake.wait(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    def _has_new_login(self, version: int) -> bool:
        """Wait for a login after a version; return False if none can come or nobody listens."""
        if self._version is None:
            self._detach_thread()
            return False
        while self._version() == version:
            self._wake.wait(LAST_RETRY_S)
            if self._detach_if_unused():
                return False
        return True

    def _detach_if_unused(self) -> bool:
        """Detach the thread if no listener remains; return True if so: then it ends."""
        with self._lock:
            if self._listeners:
                return False
            self._thread = self._latest = None
            return True

    def _detach_thread(self) -> None:
        with self._lock:
            self._thread = self._latest = None

    def _notify(self, update: StreamUpdate) -> None:
        with self._lock:
            self._latest = update
            listeners = list(self._listeners)
        for listener in listeners:
            listener(update)
