"""Measurement of one cell for `%%gpu`: GPU utilization, peak GPU memory, duration.

A thread polls the platform's measurements once a second while the cell runs.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from runai.hub_service.processes.per_process import CreatorProcess
from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.schemas import WorkloadView
from runai.widgets.wording import gpus, percent

EVERY_S = 1.0
"""Seconds between readings: agents report as often."""


@dataclass
class CellMeter:
    """GPU utilization, peak GPU memory and duration of one `with` block; `report` formats them.

    A child that leaves the block measures nothing: its parent's thread, and locks, are not its own.
    """

    read: Callable[[], WorkloadView]
    every_s: float = EVERY_S
    clock: Callable[[], float] = time.monotonic
    wall_s: float = 0.0
    _utilizations: list[float] = field(default_factory=list)
    _memory_mib: list[int] = field(default_factory=list)
    _last_view: WorkloadView | None = None
    _error_text: str = ""
    _ended: threading.Event = field(default_factory=threading.Event)
    _process: CreatorProcess = field(default_factory=CreatorProcess)

    def __enter__(self) -> Self:
        """Start the measuring thread."""
        self._began = self.clock()
        self._thread = threading.Thread(target=self._poll, name="runai-gpu-cell", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Stop the thread, and take a last reading."""
        self.wall_s = self.clock() - self._began
        if not self._process.is_current:
            self._last_view, self._error_text = None, "this is a child process of the kernel."
            return
        self._ended.set()
        self._thread.join()
        self._read_usage()

    def report(self) -> str:
        """Return the measurement in one line; a short cell gets its session's last reading."""
        took = f"{self.wall_s:.1f} s"
        view = self._last_view
        if view is None:
            return f"{took} · not measured: {self._error_text}"
        parts = [f"{percent(self._average, view.allocated)} of {gpus(view.allocated)} GPU busy"]
        if self._memory_mib:
            most = f"{max(self._memory_mib) / 1024:.1f}"
            limit = f" of {view.limit.memory_mib / 1024:.1f}" if view.limit else ""
            parts.append(f"{most}{limit} GiB at most")
        simulated = " (simulated GPU)" if view.simulated else ""
        return " · ".join([*parts, took]) + simulated

    @property
    def _average(self) -> float | None:
        return sum(self._utilizations) / len(self._utilizations) if self._utilizations else None

    def _poll(self) -> None:
        # Wait first: the reading at the start covers the second before the cell.
        while not self._ended.wait(self.every_s):
            self._read_usage()

    def _read_usage(self) -> None:
        """Take a reading; a failure leaves the reading before it."""
        try:
            view = self.read()
        except RunaiError as error:
            self._error_text = str(error)
            return
        self._last_view = view
        if view.measured.utilized is not None:
            self._utilizations.append(view.measured.utilized)
        if view.measured.memory_used_mib is not None:
            self._memory_mib.append(view.measured.memory_used_mib)
