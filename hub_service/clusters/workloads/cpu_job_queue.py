"""Queue of workloads without a GPU; the scheduler sees as many as may run.

`cpu_job_bound` chooses them. A cluster without a bound (Kubernetes, the simulated one) shows all.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from runai.hub_service.clusters.states.state import StoredWorkload
from runai.hub_service.clusters.workloads.cpu_job_bound import FOR_USER, Admitted, Bound, admitted
from runai.hub_service.clusters.workloads.snapshot_builder import workload_for_core
from runai.hub_service.model.records import WorkloadId, WorkloadSpec
from runai.hub_service.scheduler.model.snapshot import Plan, Reason, Snapshot, Wait, Workload
from runai.hub_service.wire.errors import InvalidRequest

_Counted = Mapping[WorkloadId, Workload]


class CpuJobQueue:
    """The jobs without a GPU of one cluster, in the order in which they start."""

    def __init__(self, cores: int | None = None) -> None:
        """Bound workers without a GPU by a number of CPU cores; None: show all."""
        self._bound = None if cores is None else Bound(cores)
        self._counted: _Counted = {}
        """All bounded workloads, as the scheduler would see them without a bound."""
        self._chosen = Admitted({}, ())
        self._said: dict[WorkloadId, Wait] = {}

    def refuse(self, spec: WorkloadSpec) -> None:
        """Refuse a gang that could never start.

        Raises:
            InvalidRequest: it needs more workers at once than one user may run.
        """
        bound = self._bound
        if bound is not None and _counts(spec) and spec.min_workers > bound.for_user:
            raise InvalidRequest(
                f"{spec.min_workers} workers without a GPU cannot run at once: one user may run"
                f" {bound.for_user} on this machine ({bound.per_core(FOR_USER)}).",
                hint="Ask for fewer (--workers), let it start with fewer (--min-workers), or"
                " submit an array (--array), whose jobs take turns.",
                code="too_many_workers",
            )

    def observed(
        self, drawn: tuple[Workload, ...], spec_of: Callable[[WorkloadId], WorkloadSpec]
    ) -> tuple[Workload, ...]:
        """Return the workloads that the scheduler is to see."""
        if self._bound is None:
            return drawn
        without = (w for w in drawn if not w.workers[0].gpus)  # of thousands, few
        self._counted = {w.name: w for w in without if _counts(spec_of(w.name))}
        self._chosen = admitted(self._counted.values(), self._bound)
        return _with_chosen(drawn, self._counted, self._chosen)

    def waits(self, waits: Sequence[Wait]) -> Sequence[Wait]:
        """Return a plan's waits; each project's end with its workloads that were not shown."""
        held = self._chosen.held
        if not held:
            self._said = {}
            return waits
        told = _with_held(waits, self._chosen, self._said)
        self._said = {workload.name: told[workload.name] for workload, _ in held}
        return list(told.values())

    def otherwise(
        self,
        snapshot: Snapshot,
        added: Sequence[StoredWorkload] = (),
        gone: Container[WorkloadId] = (),
    ) -> tuple[Snapshot, Admitted]:
        """Return the snapshot with workloads added and removed, as the scheduler would see it."""
        new = {row.id: w for row in added if (w := workload_for_core(row)) is not None}
        there = (*snapshot.workloads, *new.values())
        if self._bound is None:
            return replace(snapshot, workloads=there), self._chosen
        counted = {name: w for name, w in self._counted.items() if name not in gone}
        counted |= {row.id: new[row.id] for row in added if row.id in new and _counts(row.spec)}
        chosen = admitted(counted.values(), self._bound)
        return replace(snapshot, workloads=_with_chosen(there, counted, chosen)), chosen


def as_shown(snapshot: Snapshot, plan: Plan, chosen: Admitted) -> tuple[Snapshot, Plan]:
    """Add the workloads that the scheduler was not shown, and their waits."""
    if not chosen.held:
        return snapshot, plan
    rest = [d for d in plan.decisions if not isinstance(d, Wait)]
    waits = _with_held([d for d in plan.decisions if isinstance(d, Wait)], chosen, {})
    return (
        replace(snapshot, workloads=(*snapshot.workloads, *(w for w, _ in chosen.held))),
        replace(plan, decisions=(*rest, *waits.values())),
    )


def _counts(spec: WorkloadSpec) -> bool:
    """Return True if the cluster starts it, without a GPU; False for JupyterHub's sessions."""
    return spec.command is not None and not spec.gpus and not spec.gpu_memory_mib


def _with_chosen(
    there: tuple[Workload, ...], counted: _Counted, chosen: Admitted
) -> tuple[Workload, ...]:
    return (*(w for w in there if w.name not in counted), *chosen.shown.values())


def _with_held(
    waits: Sequence[Wait], chosen: Admitted, said: Mapping[WorkloadId, Wait]
) -> dict[WorkloadId, Wait]:
    """Append held workloads to their projects' queues; reuse equal waits of the last plan."""
    queues: dict[str, list[Wait]] = {}
    for wait in waits:
        queues.setdefault(wait.workload.partition("/")[0], []).append(wait)
    reasons: dict[str, Reason] = {}
    for workload, text in chosen.held:
        queue = queues.setdefault(workload.project, [])
        reason = reasons.setdefault(text, Reason(code="no_room", rule="", text=text))
        position = queue[-1].position + 1 if queue else 1
        wait = Wait(workload=workload.name, reason=reason, position=position)
        known = said.get(workload.name)
        queue.append(known if known is not None and known == wait else wait)
    return {wait.workload: wait for queue in queues.values() for wait in queue}
