"""Background queue of reports, so that training never waits for a network.

It stores the newest value of each name since the last send, which is all that a gauge can show.
`reportMetric` and the other functions use one `Reporter` per process.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Final, Self

from runai.hub_service.processes.per_process import CreatorProcess
from runai.reporter.pushing import Report, ReportType, push
from runai.utils.notices import notice

MOST_NAMES: Final = 1000
"""Most names that wait for a slow network; further ones are dropped."""


class Reporter(threading.Thread):
    """A thread that sends reports; a `with` block ends after the last one is sent.

    A forked child has no such thread: what it reports goes to its process's own reporter.
    """

    def __init__(self) -> None:
        super().__init__(name="runai-reporter", daemon=True)
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, ReportType], Report] = {}
        self._finishing = False
        self._process = CreatorProcess()

    @property
    def is_here(self) -> bool:
        """True in the process that has the thread, False in a child of it."""
        return self._process.is_current

    def start(self, daemon: bool = True) -> None:  # noqa: FBT001, FBT002 - the original's
        """Start the thread; a daemon ends with the process, also with unsent reports."""
        self.daemon = daemon
        super().start()

    def finish(self) -> None:
        """Send all waiting reports, and stop the thread."""
        if not self.is_here:
            finish()
            return
        with self._changed:
            self._finishing = True
            self._changed.notify()
        self.join()

    def send(self, message: tuple[str, object, ReportType] | None) -> None:
        """Queue name, value and kind; None stops the thread without waiting."""
        if not self.is_here:
            if message is not None:
                send(*message)
            return
        with self._changed:
            if message is None:
                self._finishing = True
            else:
                report = Report(*message)
                key = report.name, report.kind
                if key not in self._waiting and len(self._waiting) >= MOST_NAMES:
                    notice(f"runai.reporter: more than {MOST_NAMES} names wait to be sent.")
                    return
                self._waiting[key] = report
            self._changed.notify()

    def reportMetric(self, name: str, value: object) -> None:  # noqa: N802 - the original's
        """Report a number."""
        self.send(_metric(name, value))

    def reportParameter(self, name: str, value: object) -> None:  # noqa: N802
        """Report a text."""
        self.send((name, str(value), ReportType.parameter))

    def run(self) -> None:
        """Send reports until finished."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._finishing)
                reports, self._waiting = list(self._waiting.values()), {}
                if not reports:
                    return
            push.all(reports)

    def __enter__(self) -> Self:
        self.start(daemon=False)
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()


def reportMetric(name: str, value: object) -> None:  # noqa: N802 - the original's
    """Report a number: `reportMetric("loss", 0.5)`; `epoch` and `overall_epochs` are progress."""
    send(*_metric(name, value))


def reportParameter(name: str, value: object) -> None:  # noqa: N802
    """Report a text: `reportParameter("optimizer_name", "Adam")`."""
    send(name, str(value), ReportType.parameter)


def send(name: str, value: object, report_type: ReportType) -> None:
    """Report by the process's own reporter, which the first report starts."""
    global _own  # noqa: PLW0603
    if _own is None or not _own.is_here:
        _own = Reporter()
        _own.start(daemon=True)
    _own.send((name, value, report_type))


def finish() -> None:
    """Wait until all reports are sent; the next report starts a new thread."""
    global _own  # noqa: PLW0603
    if _own is not None and _own.is_here:
        _own.finish()
    _own = None


_own: Reporter | None = None


def _metric(name: str, value: object) -> tuple[str, object, ReportType]:
    """Convert a number now: a tensor may change, or move, before it is sent."""
    with contextlib.suppress(TypeError, ValueError):
        value = float(value)  # type: ignore[arg-type] # a wrong type is reported when sent
    return name, value, ReportType.metric
