"""Collect reports in the background, so that training never waits for a network.

Knows what changed since the last time it sent: of each name the newest value, which is all that a
gauge can show. `pushing` sends. `reportMetric` and its like use one `Reporter` for the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final, Self

from runai.reporter.pushing import Report, ReportType, push
from runai.utils.notices import notice

MOST_NAMES: Final = 1000
"""More names than that wait for a slow network in no training; further ones are left out."""


class Reporter(threading.Thread):
    """Send what is reported, in a thread; a `with` block ends when all of it was sent."""

    def __init__(self) -> None:
        super().__init__(name="runai-reporter", daemon=True)
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, ReportType], Report] = {}
        self._finishing = False

    def start(self, daemon: bool = True) -> None:  # noqa: FBT001, FBT002 - the original's
        """Begin to send; a daemon ends with the process, sent or not."""
        self.daemon = daemon
        super().start()

    def finish(self) -> None:
        """Send what is waiting, and end."""
        with self._changed:
            self._finishing = True
            self._changed.notify()
        self.join()

    def send(self, message: tuple[str, object, ReportType] | None) -> None:
        """Report a name, its value and its kind; None finishes, without waiting."""
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
        """Send until finished. Called by the thread."""
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
    """Report by the process's own reporter, which starts with the first report."""
    global _own, _own_pid
    if _own is None or _own_pid != os.getpid():  # a forked child has no thread
        _own, _own_pid = Reporter(), os.getpid()
        _own.start(daemon=True)
    _own.send((name, value, report_type))


def finish() -> None:
    """Wait until everything reported was sent; the next report starts anew."""
    global _own  # noqa: PLW0603
    if _own is not None and _own_pid == os.getpid():
        _own.finish()
    _own = None


_own: Reporter | None = None
_own_pid = 0


def _metric(name: str, value: object) -> tuple[str, object, ReportType]:
    """Read a number now: a tensor may have changed, or moved, when it is sent."""
    with contextlib.suppress(TypeError, ValueError):
        value = float(value)  # type: ignore[arg-type] # what is none is told of when sent
    return name, value, ReportType.metric
