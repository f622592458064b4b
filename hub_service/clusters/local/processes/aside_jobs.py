"""Jobs of users whose accounts do not answer: set aside, taken up again, or given up."""

from collections.abc import Callable, Mapping
from typing import Protocol

from runai.hub_service.clusters.local.processes.job_accounts import JobAccounts
from runai.hub_service.clusters.states import set_aside
from runai.hub_service.clusters.states.transition import ExitStatus, Transition
from runai.hub_service.clusters.workloads.workload_index import WorkloadIndex
from runai.hub_service.model.records import StateReason, WorkloadId, WorkloadRecord


class AsideCluster(Protocol):
    """Part of a cluster whose jobs are set aside."""

    index: WorkloadIndex

    def commit(self, transitions: Mapping[WorkloadId, Transition]) -> None:
        """Store transitions, then act on them."""


class AsideJobs:
    """Transitions of jobs that wait for their user's account."""

    def __init__(
        self,
        cluster: AsideCluster,
        accounts: JobAccounts,
        report_exit: Callable[[WorkloadId, int, ExitStatus], None],
        clock: Callable[[], float],
    ) -> None:
        """Use `report_exit` for the workers of starts that cannot go on."""
        self._cluster = cluster
        self._accounts = accounts
        self._report_exit = report_exit
        self._clock = clock

    def end_start(self, workload: WorkloadId, attempt: int, exit_status: ExitStatus) -> None:
        """Apply an exit to the workers of a start that have not begun."""
        row = self._cluster.index.row(workload)
        for worker in row.active if row is not None else ():
            if worker.attempt == attempt and worker.state == "starting":
                self._report_exit(workload, worker.index, exit_status)

    def set_aside(self, user: str, reason: StateReason) -> None:
        """Set all jobs of a user aside that are in the queue, until `take_up`."""
        transitions = {row.id: set_aside.set_aside(row, reason) for row in self._jobs_of(user)}
        self._cluster.commit({w: aside for w, aside in transitions.items() if aside is not None})

    def put_off(self, workload: WorkloadId, attempt: int, reason: StateReason) -> None:
        """Set a job aside of which a start cannot go on; an elastic one goes on without it."""
        row, now = self._cluster.index.row(workload), self._clock()
        if row is None:
            return
        if (transition := set_aside.put_off_start(row, attempt, reason, now=now)) is not None:
            self._cluster.commit({workload: transition})
        self.end_start(workload, attempt, ExitStatus(None, stop_requested=True))

    def take_up(self, user: str) -> None:
        """Put a user's jobs that were set aside back into the queue."""
        known = self._accounts.known(user)
        uid = None if known is None else known.uid
        self._cluster.commit(
            {
                row.id: set_aside.taken_up(row, uid)
                for row in self._jobs_of(user)
                if row.is_set_aside and not self._accounts.belongs_to_former_user(row)
            }
        )

    def give_up(self, user: str, reason: StateReason) -> None:
        """Suspend a user's jobs that were set aside."""
        self._cluster.commit(
            {
                row.id: set_aside.given_up(row, reason)
                for row in self._jobs_of(user)
                if row.is_set_aside
            }
        )

    def _jobs_of(self, user: str) -> list[WorkloadRecord]:
        return [row for row in self._cluster.index.values() if row.spec.user == user]
