"""Which workloads are clients of MPS with a limit, as the environment of their process says.

It was decided when they were started; whoever started before MPS was ready is none until the end.
Called by `keeping` at each poll; a process is looked at once.
"""

from collections.abc import Sequence

import psutil

from runai.hub_service.api.reports import AgentAllocation
from runai.hub_service.limits.sharing import MPS_LIMIT


class MpsClients:
    """Remembers what was found."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._known: dict[tuple[int, float | None], bool] = {}
        self._asked: Sequence[AgentAllocation] = ()
        self._answer: frozenset[str] = frozenset()

    def among(self, allocations: Sequence[AgentAllocation]) -> frozenset[str]:
        """Return the workloads of which each worker is a client."""
        if allocations is self._asked:
            return self._answer
        self._asked, self._answer = allocations, self._among(allocations)
        return self._answer

    def _among(self, allocations: Sequence[AgentAllocation]) -> frozenset[str]:
        here = {(a.pid, a.created): a for a in allocations if a.pid is not None and a.limits_mib}
        self._known = {
            key: self._known[key] if key in self._known else _is_client(key[0]) for key in here
        }
        others = {a.workload for a in allocations if not self._known.get((a.pid or 0, a.created))}
        return frozenset({a.workload for a in allocations} - others)


def _is_client(pid: int) -> bool:
    try:
        return MPS_LIMIT in psutil.Process(pid).environ()
    except psutil.Error:
        return False
