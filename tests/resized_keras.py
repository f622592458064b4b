"""A Keras training that waits before each update until the test allows it.

`elastic/keras_resized_program.py` reads and writes its files; the launcher or the platform that
runs it decides the number of GPUs. Nothing depends on time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training_records import allow
from waiting import eventually

PROGRAM = Path(__file__).parent / "elastic/keras_resized_program.py"
PATIENCE_S = 250.0


class ResizedKeras:
    """The training of one directory."""

    def __init__(self, directory: Path, decided: Callable[[], int]) -> None:
        """Make the directory; `decided` returns the number of GPUs the cluster wants, or raises."""
        self.directory, self._decided = directory, decided
        directory.mkdir(parents=True, exist_ok=True)
        allow(self.directory, 0)

    def trains_on(self, gpus: int, *, without: int = 0) -> dict[str, Any]:
        """Wait until `gpus` GPUs train; let the previous ones finish their update.

        Args:
            gpus: the number of GPUs that train together.
            without: a process that must not be among them.

        Returns:
            The last rank's record of the update that is to be allowed next.
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
                allow(self.directory, self._allowed() + 1)
            return None

        return eventually(so_many, within=PATIENCE_S)

    def pauses(self, ended: Callable[[], object]) -> None:
        """Let the training finish its update, and wait until its processes have left."""
        allow(self.directory, self._allowed() + 1)
        eventually(lambda: ended() is not None, within=PATIENCE_S)

    def to_the_end(self) -> None:
        """Let the training finish."""
        allow(self.directory, 10**9)

    def records(self) -> list[dict[str, Any]]:
        """Return the records written before each update, of each run and rank."""
        path = self.directory / "records"
        lines = path.read_text().split("\n") if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def result(self) -> dict[str, Any]:
        """Return the result of the training."""
        found: dict[str, Any] = json.loads((self.directory / "result.json").read_text())
        return found

    def _allowed(self) -> int:
        return int((self.directory / "allowed").read_text())
