"""An elastic job that trains as far as its test allows, watched by the records of its workers.

Knows `recorded_training` and the service's client; where the workers run is the test's affair, if
only they see `directory`. Nothing is timed. Called by tests of elastic jobs in pods.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import WorkloadDetail
from training_records import expected_history, read_records, reconcile
from waiting import eventually

EPOCHS = 20
PATIENCE_S = 200
PROGRAM = """
import sys
from pathlib import Path
from elastic_trainings import Training
from recorded_training import train
train(Path(sys.argv[1]), int(sys.argv[2]), Training())
"""


class AllowedTraining:
    """The job called `name`; it may make no update before it is allowed to."""

    def __init__(self, name: str, directory: Path, client: Callable[[], Client]) -> None:
        """Keep records in a new directory; `client` is asked for anew by each call."""
        self.name, self.directory = name, directory
        self._client = client
        directory.mkdir()
        allow(self.directory, 0)

    @staticmethod
    def command(python: str, directory: str) -> list[str]:
        """Return the program of its workers, who see its directory by that path."""
        return [python, "-u", "-c", PROGRAM, directory, str(EPOCHS)]

    def job(self) -> WorkloadDetail:
        """Return it as it is now.

        Raises:
            RuntimeError: it has failed; says what its workers said.
        """
        found = self._client().workload(self.name)
        if found.state in {"failed", "ended"}:
            said = "\n".join(line.text for line in self._client().logs(self.name))
            raise RuntimeError(f"{found.reason}\n{said}")
        return found

    def trains_on(self, ranks: int) -> None:
        """Wait until so many ranks train, letting those before them end their update."""

        def so_many() -> bool:
            elastic, records = self.job().elastic, read_records(self.directory)
            if elastic is None or elastic.training != ranks:
                return False
            newest = max((record["gen"] for record in records), default=0)
            now = {record["ranks"] for record in records if record["gen"] == newest}
            if now == {ranks}:
                return True
            allow_more(self.directory)
            return False

        eventually(so_many, within=PATIENCE_S, what=f"it trains on {ranks}")

    def until(self, state: str) -> WorkloadDetail:
        """Wait until it is in a state, letting it train as long as it does."""

        def there() -> bool:
            allow_more(self.directory)
            return self.job().state == state

        eventually(there, within=PATIENCE_S, what=f"it is {state}")
        return self.job()

    def to_the_end(self) -> WorkloadDetail:
        """Let it train all of its epochs; return it when it has."""
        allow(self.directory, 10**9)
        eventually(
            lambda: self.job().state == "succeeded", within=PATIENCE_S, what="it has trained"
        )
        return self.job()

    def has_lost_nothing(self) -> bool:
        """Tell whether each sample was used once in each epoch, whoever used it."""
        return reconcile(read_records(self.directory)) == expected_history(EPOCHS)

    def sizes(self) -> set[int]:
        """Return on how many ranks it has trained."""
        return {record["ranks"] for record in read_records(self.directory)}


def allow(directory: Path, updates: int) -> None:
    """Let whoever trains there begin so many updates, counted from the first."""
    whole = directory / ".allowed"
    whole.write_text(str(updates))
    whole.replace(directory / "allowed")


def allow_more(directory: Path) -> None:
    """Let them begin one update more than they have."""
    begun = [record["update"] for record in read_records(directory)]
    allow(directory, max(begun, default=-1) + 1)
