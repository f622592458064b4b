"""Contract of executors, which run the workers of a cluster's rows.

The rows name the workers that are to run, and where. An executor starts and stops them, and reports
their fate by the cluster's `report_…` methods. Calls are level-triggered: each has the whole row,
and `run` goes through all rows.
"""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol

from runai.hub_service.model.cluster import LogChunk
from runai.hub_service.model.device import Device
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import (
    Allocation,
    Process,
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)


class Executor(Protocol):
    """Part of a cluster that runs the workers of its rows."""

    async def run(self) -> NoReturn:
        """Run the background tasks until cancelled; adopt running workers first."""

    def act(self, row: WorkloadRecord) -> None:
        """Reconcile workers with a changed row; must be quick.

        The row is in the store's memory: before an act outside this machine, await `Store.stored`.
        """

    def forgetting(
        self, row: WorkloadRecord, *, aged: bool = False
    ) -> AbstractContextManager[None]:
        """Remove a workload's other data if the block that deletes its row succeeds.

        `aged`: keep its results, since no user has asked for their deletion.
        """

    # -- users and places ------------------------------------------------------------------------

    async def check(self, spec: WorkloadSpec) -> None:
        """Check that a workload's workers can be run here, and now.

        Raises:
            InvalidRequest: the workload is not possible here.
            NotFound: its user has no account.
            Forbidden: the account is another person's now.
            Unavailable: it does not answer.
        """

    def account_uid(self, user: str) -> int | None:
        """Return the Unix uid of a user's workers; None: that of the platform."""

    def directories(self, spec: WorkloadSpec, now: float) -> tuple[str, str]:
        """Return the directories of a workload's checkpoints and logs."""

    def free_port(self) -> int:
        """Return a port at which the workers of a gang can meet."""

    # -- workers ---------------------------------------------------------------------------------

    def variables(
        self, row: WorkloadRecord, worker: WorkerRecord, devices: Sequence[Device]
    ) -> dict[str, str]:
        """Return the environment of a worker that holds devices, given those of its node.

        A spawner that asks for a session's starts the session with them.
        """

    def recognised(self, row: WorkloadRecord, process: Process) -> Process:
        """Return a session's process as it is recorded, given the one that a spawner names."""

    def adopt(self, row: WorkloadRecord, process: Process) -> None:
        """Hold a session's process to its requests."""

    def faults(self, reported: Mapping[str, str]) -> Mapping[str, str]:
        """Return the faults of devices by UUID, "" for none, given those that an agent reports."""

    def allocations(
        self, node: str, devices: Sequence[Device], rows: Iterable[WorkloadRecord]
    ) -> Sequence[Allocation]:
        """Return the workers of `rows` that run or stop on a node, for its agent."""

    def logs(
        self,
        record: WorkloadRecord,
        *,
        worker: int | None,
        tail: int | None,
        follow: bool,
        parts: bool = False,
    ) -> AsyncGenerator[LogChunk]:
        """Yield the output of a workload's workers; `follow` continues until the end."""

    async def progress(
        self, only: Collection[WorkloadId] | None = None
    ) -> Mapping[WorkloadId, Progress]:
        """Return the last progress that each job reported; `only` limits the jobs."""
