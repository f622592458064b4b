"""Drive a Keras training that waits before each update until it is allowed to make it.

Knows the files of `elastic/keras_resized_program.py`; whoever runs it (launcher, platform) says how
many GPUs it decided on. Nothing is timed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waiting import eventually

PROGRAM = Path(__file__).parent / "elastic/keras_resized_program.py"
PATIENCE_S = 250.0


class ResizedKeras:
    """The training of one directory."""

    def __init__(self, directory: Path, decided: Callable[[], int]) -> None:
        """Make the directory; `decided` tells on how many GPUs the cluster wants it, or raises."""
        self.directory, self._decided = directory, decided
        directory.mkdir(parents=True, exist_ok=True)
        self._allow(0)

    def trains_on(self, gpus: int, *, without: int = 0) -> dict[str, Any]:
        """Wait until so many GPUs are at work, letting those before them end their update.

        Args:
            gpus: that are to train together.
            without: a process that is not to be among them.

        Returns:
            The last rank's record of the update that they wait to make.
        """

        def so_many() -> Any:
            if self._decided() != gpus:
                return None
            waiting = {
                record["pid"]: record
                for record in self.records()
                if record["update"] == self._allowed()
            }
            here = [r for r in waiting.values() if r["gpus"] == gpus and r["pid"] != without]
            if here:
                return max(here, key=lambda record: record["rank"])
            if waiting:
                self._allow(self._allowed() + 1)
            return None

        return eventually(so_many, within=PATIENCE_S)

    def pauses(self, ended: Callable[[], object]) -> None:
        """Let it end the update that it waits to make, and wait until it has left."""
        self._allow(self._allowed() + 1)
        eventually(lambda: ended() is not None, within=PATIENCE_S)

    def to_the_end(self) -> None:
        """Let it finish."""
        self._allow(10**9)

    def records(self) -> list[dict[str, Any]]:
        """Return what was recorded before each update, of each run and rank."""
        path = self.directory / "records"
        lines = path.read_text().split("\n") if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def result(self) -> dict[str, Any]:
        """Return how it ended."""
        found: dict[str, Any] = json.loads((self.directory / "result.json").read_text())
        return found

    def _allowed(self) -> int:
        return int((self.directory / "allowed").read_text())

    def _allow(self, updates: int) -> None:
        whole = self.directory / ".allowed"
        whole.write_text(str(updates))
        whole.replace(self.directory / "allowed")
