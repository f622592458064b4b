"""Who holds devices, by device and by project, put together once until any of them changes.

Pure. Made by `queues`, read by `world` and `views`: everybody who looks is shown each device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from runai.hub_service.model.records import WorkloadId, WorkloadRecord
from runai.hub_service.scheduler.model.quantity import MilliGpu


class OnDevice(NamedTuple):
    """Who holds how much of one device."""

    shares: tuple[tuple[WorkloadRecord, MilliGpu], ...] = ()
    workloads: frozenset[WorkloadId] = frozenset()
    projects: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()


NOBODY = OnDevice()


@dataclass(frozen=True)
class Holders:
    """Those that hold devices; oldest first."""

    records: tuple[WorkloadRecord, ...] = ()

    @cached_property
    def by_device(self) -> Mapping[tuple[str, int], OnDevice]:
        """Return who holds each device that anybody holds, by node and number."""
        found: dict[tuple[str, int], list[tuple[WorkloadRecord, MilliGpu]]] = {}
        for record in self.records:
            for worker in record.workers:
                for share in worker.devices:
                    shares = found.setdefault((worker.node or "", share.device), [])
                    shares.append((record, share.gpus))
        return {
            device: OnDevice(
                tuple(shares),
                frozenset([record.id for record, _ in shares]),
                frozenset([record.spec.project for record, _ in shares]),
                frozenset([record.spec.user for record, _ in shares]),
            )
            for device, shares in found.items()
        }

    @cached_property
    def by_project(self) -> Mapping[str, Sequence[WorkloadRecord]]:
        """Return those of each project, without its children's."""
        found: dict[str, list[WorkloadRecord]] = {}
        for record in self.records:
            found.setdefault(record.spec.project, []).append(record)
        return found

    @cached_property
    def allocated(self) -> Mapping[str, tuple[MilliGpu, MilliGpu]]:
        """Return what each project's hold, all together and those that are never preempted."""
        return {
            project: (
                MilliGpu(sum(r.allocated for r in records)),
                MilliGpu(sum(r.allocated for r in records if not r.spec.preemptible)),
            )
            for project, records in self.by_project.items()
        }
