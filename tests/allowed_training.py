"""An elastic job that trains only as far as the test allows.

The test reads the records that its workers write (`recorded_training`). Workers may run anywhere
that has `directory`. Nothing depends on time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import WorkloadDetail
from training_records import allow, expected_history, read_records, reconcile
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
    """The elastic job `name`; it makes no update before the test allows one."""

    def __init__(self, name: str, directory: Path, client: Callable[[], Client]) -> None:
        """Keep records in a new directory; every call asks `client()` for a client."""
        self.name, self.directory = name, directory
        self._client = client
        directory.mkdir()
        allow(self.directory, 0)

    @staticmethod
    def command(python: str, directory: str) -> list[str]:
        """Return the workers' command; `directory` is the path inside their pods."""
        return [python, "-u", "-c", PROGRAM, directory, str(EPOCHS)]

    def job(self) -> WorkloadDetail:
        """Return the job's current details.

        Raises:
            RuntimeError: the job has failed; the message has its workers' output.
        """
        detail = self._client().workload(self.name)
        if detail.state in {"failed", "ended"}:
            output = "\n".join(line.text for line in self._client().logs(self.name))
            raise RuntimeError(f"{detail.reason}\n{output}")
        return detail

    def trains_on(self, ranks: int) -> None:
        """Wait until `ranks` ranks train; let the previous ones finish their update."""

        def has_ranks() -> bool:
            elastic, records = self.job().elastic, read_records(self.directory)
            if elastic is None or elastic.training != ranks:
                return False
            newest = max((record["gen"] for record in records), default=0)
            rank_counts = {record["ranks"] for record in records if record["gen"] == newest}
            if rank_counts == {ranks}:
                return True
            allow_more(self.directory)
            return False

        eventually(has_ranks, within=PATIENCE_S, what=f"it trains on {ranks}")

    def wait_until(self, state: str) -> WorkloadDetail:
        """Wait until the job is in `state`; allow updates meanwhile."""

        def is_in_state() -> bool:
            allow_more(self.directory)
            return self.job().state == state

        eventually(is_in_state, within=PATIENCE_S, what=f"it is {state}")
        return self.job()

    def run_to_end(self) -> WorkloadDetail:
        """Let the job train all epochs; return its details at the end."""
        allow(self.directory, 10**9)
        eventually(
            lambda: self.job().state == "succeeded", within=PATIENCE_S, what="it has trained"
        )
        return self.job()

    def has_lost_nothing(self) -> bool:
        """Return True if each epoch used each sample once, on whichever rank."""
        return reconcile(read_records(self.directory)) == expected_history(EPOCHS)

    def sizes(self) -> set[int]:
        """Return the numbers of ranks that the job has trained on."""
        return {record["ranks"] for record in read_records(self.directory)}


def allow_more(directory: Path) -> None:
    """Allow one more update than so far."""
    updates = [record["update"] for record in read_records(directory)]
    allow(directory, max(updates, default=-1) + 1)
