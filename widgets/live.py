"""Listen to the platform: one daemon thread per kernel reads its events and tells who listens.

A thread, because it must go on while a cell runs. Knows nothing of widgets; they give `Live.listen`
a function of the news. The client renews broken connections; what it gives up on is told as `Lost`,
and tried again for as long as anybody listens.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass

from runai.hub_service.wire.errors import RunaiError, Unavailable
from runai.hub_service.wire.schemas import Overview


@dataclass(frozen=True, slots=True)
class Lost:
    """Nothing is heard any more; the sentence says why."""

    text: str
    retrying: bool


News = Overview | Lost
Listener = Callable[[News], None]

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 15.0


class Live:
    """The events of one platform, shared by all views of a kernel. Safe to use from any thread."""

    def __init__(self, events: Callable[[], Generator[Overview]]) -> None:
        """Keep how to open the stream; it is opened when somebody listens."""
        self._events = events
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._latest: News | None = None

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` the news, on the listening thread, until the returned function is called.

        The latest news, if any, is told at once, on the caller's thread.
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

        def leave() -> None:
            with self._lock, suppress(ValueError):
                self._listeners.remove(listener)
                if not self._listeners:
                    self._wake.set()

        return leave

    def close(self) -> None:
        """Forget all listeners; the thread ends at its next event."""
        with self._lock:
            self._listeners.clear()
            self._wake.set()

    def _read(self) -> None:
        retry_s = FIRST_RETRY_S
        while self._wanted():
            try:
                with closing(self._events()) as events:
                    for overview in events:
                        retry_s = FIRST_RETRY_S
                        self._tell(overview)
                        if not self._wanted():
                            return
            except Unavailable as away:
                self._tell(Lost(str(away), retrying=True))
            except RunaiError as refused:
                # A revoked token or a damaged setting does not mend by itself; run the cell again.
                self._tell(Lost(str(refused), retrying=False))
                self._leave()
                return
            self._wake.wait(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    def _wanted(self) -> bool:
        """Tell whether anybody listens; if nobody does, the thread is gone from now on."""
        with self._lock:
            if self._listeners:
                return True
            self._thread = self._latest = None
            return False

    def _leave(self) -> None:
        with self._lock:
            self._thread = self._latest = None

    def _tell(self, news: News) -> None:
        with self._lock:
            self._latest = news
            listeners = list(self._listeners)
        for listener in listeners:
            listener(news)
