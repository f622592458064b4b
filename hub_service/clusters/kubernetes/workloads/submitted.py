"""What a submission asks first: whether it is a repeat, and what its user has already.

Looks at the workloads as they are drawn. Part of `cluster`.
"""

from abc import abstractmethod
from collections.abc import Sequence

from runai.hub_service.clusters.kubernetes.workloads.elastic_workers import ElasticWorkers
from runai.hub_service.model.records import WorkloadRecord


class Submitted(ElasticWorkers):
    """A cluster that knows what was submitted."""

    @abstractmethod
    async def workloads(self) -> Sequence[WorkloadRecord]:
        """Return all workloads, oldest first."""

    async def submitted(self, user: str, key: str) -> Sequence[WorkloadRecord]:
        """Return what a user has submitted under a key."""
        return [r for r in await self.workloads() if (r.spec.user, r.spec.key) == (user, key)]

    async def unfinished_jobs(self, user: str) -> int:
        """Return how many jobs of a user are not finished; suspended ones are not."""
        return sum(
            r.spec.user == user and r.spec.kind == "job" and not r.state.finished
            for r in await self.workloads()
        )
