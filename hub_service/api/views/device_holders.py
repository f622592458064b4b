"""Holders of devices, indexed by device and by project.

Pure. Built once per change of the holders, and shared by all readers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from runai.hub_service.model.records import WorkloadId, WorkloadRecord
from runai.hub_service.scheduler.model.quantity import MilliGpu


class DeviceHolders(NamedTuple):
    """Holders of one device with their shares."""

    shares: tuple[tuple[WorkloadRecord, MilliGpu], ...] = ()
    workloads: frozenset[WorkloadId] = frozenset()
    projects: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()


NO_HOLDERS = DeviceHolders()


@dataclass(frozen=True)
class Holders:
    """Workloads that hold devices; oldest first."""

    records: tuple[WorkloadRecord, ...] = ()

    @cached_property
    def by_device(self) -> Mapping[tuple[str, int], DeviceHolders]:
        """Return the holders of each allocated device, by node and index."""
        shares_by_device: dict[tuple[str, int], list[tuple[WorkloadRecord, MilliGpu]]] = {}
        for record in self.records:
            for worker in record.workers:
                for share in worker.devices:
                    shares = shares_by_device.setdefault((worker.node or "", share.device), [])
                    shares.append((record, share.gpus))
        return {
            device: DeviceHolders(
                tuple(shares),
                frozenset([record.id for record, _ in shares]),
                frozenset([record.spec.project for record, _ in shares]),
                frozenset([record.spec.user for record, _ in shares]),
            )
            for device, shares in shares_by_device.items()
        }

    @cached_property
    def by_project(self) -> Mapping[str, Sequence[WorkloadRecord]]:
        """Return the workloads of each project, without its children's."""
        records_by_project: dict[str, list[WorkloadRecord]] = {}
        for record in self.records:
            records_by_project.setdefault(record.spec.project, []).append(record)
        return records_by_project

    @cached_property
    def allocated(self) -> Mapping[str, tuple[MilliGpu, MilliGpu]]:
        """Return each project's allocation: in total, and of its non-preemptible workloads."""
        return {
            project: (
                MilliGpu(sum(r.allocated for r in records)),
                MilliGpu(sum(r.allocated for r in records if not r.spec.preemptible)),
            )
            for project, records in self.by_project.items()
        }
