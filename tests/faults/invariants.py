"""Invariants after every cycle, whichever process was killed, and at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from faults.machine import Machine
from runai.hub_service.ledger import Ledger
from runai.hub_service.model.records import ACTIVE, ProjectSpec, WorkloadRecord

WAITING = frozenset({"queued", "paused"})
EXPLAINED = frozenset({"suspended", "retrying", "stopping", "failed", "succeeded"})
OWED_FOR_S = 30.0
"""One cycle, the ten seconds within which it starts in any case, and the victims' grace."""


class CycleChecker:
    """Checker of the records after every cycle; `violations` has a sentence per violation."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._owed_since: dict[str, float] = {}
        self._waited: set[str] = set()
        """Workloads that waited at the last check: a cycle has decided about them since."""
        self._ran: dict[str, int] = {}
        """Milli-GPU that each project ran at the last check."""
        self.violations = machine.violations

    def restart_timers(self) -> None:
        """Restart the timers of owed GPUs: the service was away, or could not write."""
        self._owed_since = {}
        self._waited = set()

    def check(self, records: Sequence[WorkloadRecord], projects: Sequence[ProjectSpec]) -> None:
        """Check all invariants after a cycle."""
        now = self._machine.clock.true
        for sentence in (
            *over_granted(records),
            *over_limits(records, projects, self._ran),
            *unexplained(records, self._waited),
        ):
            self._report(sentence)
        self._waited = {r.id for r in records if r.state in WAITING}
        self._ran = {project.name: running(records, project.name) for project in projects}
        owed = set(owed_projects(records, projects))
        self._owed_since = {name: self._owed_since.get(name, now) for name in owed}
        for name, since in self._owed_since.items():
            if now - since > OWED_FOR_S:
                self._report(f"{name} is owed GPUs for more than {OWED_FOR_S:.0f} s")

    def _report(self, sentence: str) -> None:
        if not any(known.startswith(sentence) for known in self.violations):
            self.violations.append(f"{sentence} (at {self._machine.clock.true:.1f} s)")


def allocated_milli(records: Iterable[WorkloadRecord], *states: str) -> Counter[tuple[str, int]]:
    """Return the milli-GPU that workers in these states hold of each device."""
    totals: Counter[tuple[str, int]] = Counter()
    for record in records:
        for worker in record.workers:
            for share in worker.devices if worker.state in states else ():
                totals[worker.node, share.device] += share.gpus
    return totals


def over_granted(records: Sequence[WorkloadRecord]) -> list[str]:
    """Return a sentence for each device with more than 1000 milli-GPU allocated."""
    return [
        f"device {device} of {node} carries {milli} milli-GPU"
        for (node, device), milli in allocated_milli(records, *ACTIVE).items()
        if milli > 1000
    ]


def running(records: Sequence[WorkloadRecord], project: str) -> int:
    """Return the milli-GPU of a project's workers that start or run; stopping ones have grace."""
    mine = [r for r in records if r.spec.project == project]
    return sum(allocated_milli(mine, "starting", "running").values())


def over_limits(
    records: Sequence[WorkloadRecord], projects: Sequence[ProjectSpec], before: Mapping[str, int]
) -> list[str]:
    """Return a sentence for each project above its limit that runs more than `before`.

    Work that ran when the limit was lowered goes on.
    """
    wrong = []
    for project in projects:
        amount = running(records, project.name)
        if project.limit is not None and amount > max(project.limit, before.get(project.name, 0)):
            wrong.append(f"{project.name} runs {amount}, over its limit {project.limit}")
    return wrong


def owed_projects(
    records: Sequence[WorkloadRecord], projects: Sequence[ProjectSpec]
) -> Iterable[str]:
    """Yield each project with a waiting one-GPU job below its quota while another is over quota."""
    amount = {
        p.name: sum(r.allocated for r in records if r.spec.project == p.name) for p in projects
    }
    lent = any(
        amount[r.spec.project] > (quota_of(r.spec.project, projects) + 999)
        and r.spec.preemptible
        and any(w.state == "running" for w in r.workers)
        and all(w.state != "stopping" for w in r.workers)
        for r in records
        if r.spec.kind == "job" and r.allocated >= 1000
    )
    if not lent or any(w.state == "stopping" for r in records for w in r.workers):
        return
    for project in projects:
        waits = any(
            r.spec.project == project.name
            and r.state in {"queued", "paused"}
            and r.spec.workers == 1
            and not r.allocated
            for r in records
        )
        if waits and amount[project.name] + 1000 <= quota_of(project.name, projects):
            yield project.name


def quota_of(name: str, projects: Sequence[ProjectSpec]) -> int:
    """Return a project's quota in milli-GPU."""
    (project,) = [p for p in projects if p.name == name]
    assert project.quota is not None
    return project.quota


def unexplained(records: Sequence[WorkloadRecord], waited: Collection[str]) -> list[str]:
    """Return a sentence for each workload that waits, stops or has ended without a reason.

    A new workload gets its reason in its first cycle; the workloads in `waited` have had one.
    """
    return [
        f"{r.id} is {r.state} without a reason"
        for r in records
        if (
            r.state in EXPLAINED
            or r.position is not None
            or (r.state in WAITING and r.id in waited)
        )
        and (r.reason is None or not r.reason.text)
    ]


def final_violations(
    records: Sequence[WorkloadRecord], machine: Machine, acknowledged: set[str]
) -> list[str]:
    """Return violations at the end: lost or orphaned jobs, undone work, devices not freed."""
    wrong = [f"{lost} is lost" for lost in sorted(acknowledged - {r.id for r in records})]
    wrong += [f"{s.worker} is orphaned" for s in machine.running()]
    wrong += [f"{r.id} still holds {r.allocated}" for r in records if r.allocated]
    for record in records:
        if record.spec.kind == "session":
            continue
        work = [machine.work[w.name] for w in record.workers]
        given_up = record.state == "failed" and record.failures > record.spec.backoff_limit
        limit = record.spec.max_runtime
        given_up |= record.state == "timed_out" and limit is not None and record.ran_s >= limit
        if record.state != "succeeded" and not given_up:
            why = record.reason.text if record.reason else "nobody knows why"
            wrong.append(f"{record.id} is {record.state} at the end: {why}")
        elif record.state == "succeeded" and any(w.done < w.seconds - 0.1 for w in work):
            wrong.append(f"{record.id} succeeded with its work undone")
        if any(w.state in ACTIVE for w in record.workers):
            wrong.append(f"{record.id} is active at the end")
    return wrong


def ledger_violations(ledger: Ledger, max_gpu_s: float) -> list[str]:
    """Return sums of the ledger that disagree, or are more than could be held."""
    wrong = []
    for what in ("allocated_s", "used_s"):
        total = _sum(ledger, "all", what)
        for kind in ("project", "node"):
            amount = _sum(ledger, kind, what)
            if abs(amount - total) > 0.5:
                wrong.append(f"the ledger's {kind}s have {what} {amount:.1f}, all {total:.1f}")
        if what == "allocated_s" and total > max_gpu_s + 1:
            wrong.append(f"the ledger counts {total:.1f} GPU-s of {max_gpu_s:.1f} that were held")
    return wrong


def _sum(ledger: Ledger, kind: str, what: str) -> float:
    amounts: list[float] = [
        getattr(ledger._settled(series).totals, what)
        for scope, series in ledger._by_scope.items()
        if scope.kind == kind
    ]
    return sum(amounts)
