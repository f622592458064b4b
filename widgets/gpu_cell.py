"""Measure a cell: how busy it kept the session's GPUs, how much memory it took, how long it ran.

Reads what the platform measures, once a second, in a thread of its own, so that it goes on while
the cell runs. For the magic `%%gpu`.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.schemas import WorkloadView
from runai.widgets.wording import gpus, percent

EVERY_S = 1.0
"""As often as agents report."""


@dataclass
class CellMeter:
    """Measure what happens between `with` and its end; `report` tells it."""

    read: Callable[[], WorkloadView]
    every_s: float = EVERY_S
    clock: Callable[[], float] = time.monotonic
    wall_s: float = 0.0
    _busy: list[float] = field(default_factory=list)
    _memory: list[int] = field(default_factory=list)
    _last: WorkloadView | None = None
    _trouble: str = ""
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        """Begin."""
        self._began = self.clock()
        self._thread = threading.Thread(target=self._go_on, name="runai-gpu-cell", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End, with one more reading."""
        self.wall_s = self.clock() - self._began
        self._over.set()
        self._thread.join()
        self._look()

    def report(self) -> str:
        """Tell in one line; a cell shorter than a reading has its session's last one."""
        took = f"{self.wall_s:.1f} s"
        view = self._last
        if view is None:
            return f"{took} · not measured: {self._trouble}"
        parts = [f"{percent(self._average, view.allocated)} of {gpus(view.allocated)} GPU busy"]
        if self._memory:
            most = f"{max(self._memory) / 1024:.1f}"
            limit = f" of {view.limit.memory_mib / 1024:.1f}" if view.limit else ""
            parts.append(f"{most}{limit} GiB at most")
        simulated = " (simulated GPU)" if view.simulated else ""
        return " · ".join([*parts, took]) + simulated

    @property
    def _average(self) -> float | None:
        return sum(self._busy) / len(self._busy) if self._busy else None

    def _go_on(self) -> None:
        # The first second still has what was before the cell in it.
        while not self._over.wait(self.every_s):
            self._look()

    def _look(self) -> None:
        try:
            view = self.read()
        except RunaiError as error:
            self._trouble = str(error)
            return
        self._last = view
        if view.utilized is not None:
            self._busy.append(view.utilized)
        if view.memory_used_mib is not None:
            self._memory.append(view.memory_used_mib)
