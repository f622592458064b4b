"""Average allocated and utilized GPUs over short steps, for the chart.

Pure: callers pass the time. Recorded averages are followed by live values, each valid until the
next. Lost connections are gaps, not zeros.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

ChartPoint = tuple[float, float | None, float | None]
"""End of the step in Unix seconds, allocated and utilized GPUs in it; None: unknown."""


@dataclass(slots=True)
class _Average:
    seconds: float = 0.0
    gpu_seconds: float = 0.0

    def add(self, gpus: float | None, seconds: float) -> None:
        if gpus is not None:
            self.seconds += seconds
            self.gpu_seconds += gpus * seconds

    @property
    def value(self) -> float | None:
        return round(self.gpu_seconds / self.seconds, 3) if self.seconds else None


@dataclass(slots=True)
class _Step:
    allocated: _Average = field(default_factory=_Average)
    utilized: _Average = field(default_factory=_Average)


class Timeline:
    """The last `window_s` seconds in steps of `step_s`."""

    def __init__(self, window_s: float, step_s: float) -> None:
        """Create an empty timeline."""
        self.window_s = window_s
        self.step_s = step_s
        self._steps: dict[int, _Step] = {}
        self._last_point: ChartPoint | None = None

    def load(self, points: Iterable[ChartPoint], step_s: float) -> None:
        """Add recorded points, each the average of the `step_s` seconds before it.

        The last step may be shorter: it begins at the end of the one before.
        """
        before = -inf
        for at, allocated, utilized in points:
            if allocated is not None:
                self._add_span(at, max(at - step_s, before), allocated, utilized)
            before = at

    def push(self, at: float, allocated: float | None, utilized: float | None) -> None:
        """Add values valid from `at` on; the previous ones end here."""
        if self._last_point is not None:
            self._add_span(at, *self._last_point)
        self._last_point = (at, allocated, utilized)
        oldest = self._index(at - self.window_s)
        self._steps = {index: step for index, step in self._steps.items() if index >= oldest}

    def lose(self) -> None:
        """Begin a gap: values are unknown until the next `push`."""
        self._last_point = None

    def points(self) -> list[ChartPoint]:
        """Return the steps in order, with one empty point for each gap."""
        points: list[ChartPoint] = []
        last: int | None = None
        for index, step in sorted(self._steps.items()):
            if last is not None and index > last + 1:
                points.append(((last + 2) * self.step_s, None, None))
            end = (index + 1) * self.step_s
            points.append((end, step.allocated.value, step.utilized.value))
            last = index
        return points

    def _add_span(
        self, until: float, since: float, allocated: float | None, utilized: float | None
    ) -> None:
        """Add values to the steps from `since` to `until`."""
        while since < until:
            index = self._index(since)
            end = min(until, (index + 1) * self.step_s)
            step = self._step_at_index(index)
            step.allocated.add(allocated, end - since)
            step.utilized.add(utilized, end - since)
            since = end

    def _index(self, at: float) -> int:
        return int(at // self.step_s)

    def _step_at_index(self, index: int) -> _Step:
        return self._steps.setdefault(index, _Step())
