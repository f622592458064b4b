"""Memory limits enforced by the driver: one control group and one limit per worker.

A worker gets its limit as soon as its process is known, within a second of its start. If the limit
cannot be set, the worker stays in the softer tiers.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil
import pynvml

from runai.hub_service.agent.processes.process_owners import SAME_START_S
from runai.hub_service.limits.cgroups import GroupsUnavailable
from runai.hub_service.limits.driver_limits import DriverLimits
from runai.hub_service.wire.reports import AgentAllocation

log = logging.getLogger(__name__)

Key = tuple[str, int, tuple[tuple[str, int], ...]]
"""A worker, its process, and its limit on each device."""


class HardLimits:
    """Workers with a limit of the driver."""

    def __init__(self, driver: DriverLimits) -> None:
        """Start without limits."""
        self._driver = driver
        self._is_limited: dict[Key, bool] = {}

    def enforce(self, allocations: Sequence[AgentAllocation]) -> frozenset[str]:
        """Limit new workers, lift the limits of ended workers; return the limited workloads.

        A workload counts as limited if each of its workers on this node has a limit.
        """
        desired = {_key(a): a for a in allocations if a.pid is not None and a.limits_mib}
        for key in self._is_limited.keys() - desired.keys():
            self._lift(key)
        self._is_limited = {
            key: self._is_limited[key] if key in self._is_limited else self._limit(key, allocation)
            for key, allocation in desired.items()
        }
        unlimited = {a.workload for a in allocations if not self._is_limited.get(_key(a))}
        return frozenset({a.workload for a in allocations} - unlimited)

    def _limit(self, key: Key, allocation: AgentAllocation) -> bool:
        """Set a worker's limits; return False if the driver or the process does not allow it."""
        worker, pid, limits = key
        try:
            process = psutil.Process(pid)
            if (
                allocation.created
                and abs(process.create_time() - allocation.created) > SAME_START_S
            ):
                return False
            group = self._driver.groups.adopt(worker, process)
            for device, memory_mib in limits:
                self._driver.limit(group, device, memory_mib)
        except (GroupsUnavailable, psutil.Error, pynvml.NVMLError) as error:
            log.warning("%s keeps a soft memory limit: %s", worker, error)
            return False
        return True

    def _lift(self, key: Key) -> None:
        worker, _, limits = key
        groups = self._driver.groups
        for device, _ in limits:
            with suppress(pynvml.NVMLError):
                self._driver.lift(groups.path(worker), device)
        groups.remove(worker)


def _key(allocation: AgentAllocation) -> Key:
    limits: Mapping[str, int] = allocation.limits_mib
    return allocation.worker, allocation.pid or 0, tuple(sorted(limits.items()))
