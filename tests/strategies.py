"""Hypothesis strategies: small clusters, project trees and workloads in every state.

`snapshots()` draws possible states of a cluster: running workloads fit on their devices, gangs run
whole, limits and build quotas hold. Random snapshots come from running random plans of our own and
of a careless placer that puts jobs wherever there is room.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from runai.hub_service.scheduler import (
    Mib,
    MilliGpu,
    Node,
    Policy,
    Project,
    Snapshot,
    Worker,
    WorkerState,
    Workload,
)
from runai.hub_service.scheduler.model.snapshot import PolicyPhase, WorkloadKind

MEMORY = Mib(1000)

NODES = st.lists(st.integers(1, 4), min_size=1, max_size=3)
QUOTAS = st.sampled_from([0, 500, 1000, 1000, 2000, 2500, 4000])
EVERY_PHASE: tuple[PolicyPhase, ...] = (*Policy().phases, "consolidate")
FRACTIONS = st.sampled_from([250, 300, 500, 700])


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Node, ...]:
    """Draw one to three nodes of one to four devices."""
    sizes = draw(NODES)
    return tuple(
        Node(
            name=f"n{i}",
            devices=size,
            device_memory_mib=MEMORY,
            gpu_type=draw(st.sampled_from(["old", "old", "new"])),
            cpu_milli=8000,
            memory_mib=MEMORY,
        )
        for i, size in enumerate(sizes)
    )


@st.composite
def projects(draw: st.DrawFn) -> tuple[Project, ...]:
    """Draw two to four projects, sometimes with a parent."""
    names = ["a", "b", "c", "d"][: draw(st.integers(2, 4))]
    has_parent = draw(st.booleans())
    tree = []
    if has_parent:
        tree.append(
            Project(
                name="p",
                quota=MilliGpu(draw(QUOTAS)) if draw(st.booleans()) else Project(name="").quota,
                limit=MilliGpu(draw(st.sampled_from([2000, 5000])))
                if draw(st.booleans())
                else None,
            )
        )
    for name in names:
        quota = draw(QUOTAS)
        tree.append(
            Project(
                name=name,
                parent="p" if has_parent and draw(st.booleans()) else None,
                quota=MilliGpu(quota),
                build_quota=MilliGpu(draw(st.sampled_from([0, 500, quota]))),
                limit=MilliGpu(draw(st.sampled_from([2000, 3500])))
                if draw(st.integers(0, 3)) == 0
                else None,
                weight=draw(st.sampled_from([None, None, 0, 1, 3])),
                priority=draw(st.sampled_from([100, 100, 100, 200])),
                created=draw(st.integers(0, 2)),
                min_runtime=draw(st.sampled_from([0, 0, 0, 50])),
                never_lent=MilliGpu(draw(st.sampled_from([0, 0, 0, 0, 1000]))),
            )
        )
    return tuple(tree)


@st.composite
def demands(draw: st.DrawFn, index: int) -> Worker:
    """Draw the requests of one workload's workers."""
    shape = draw(st.integers(0, 10))
    worker = Worker(
        name=f"w{index}",
        cpu_milli=draw(st.sampled_from([0, 0, 0, 1000, 3000, 6000])),
        gpu_types=draw(st.sampled_from([(), (), (), ("new", "old"), ("old", "new"), ("new",)])),
    )
    if shape == 10:
        return replace(worker, cpu_milli=draw(st.sampled_from([2000, 5000])))
    if shape <= 5:
        return replace(worker, gpus=MilliGpu(draw(st.sampled_from([1000, 1000, 1000, 2000, 3000]))))
    if shape <= 7:
        return replace(worker, gpus=MilliGpu(draw(FRACTIONS)))
    if shape == 8:
        return replace(worker, gpu_memory_mib=Mib(draw(st.sampled_from([200, 400, 600]))))
    return replace(
        worker, gpus=MilliGpu(draw(FRACTIONS)), devices_wanted=draw(st.sampled_from([1, 2]))
    )


@st.composite
def workloads(draw: st.DrawFn, index: int, owners: list[str]) -> Workload:
    """Draw a pending workload: a session, a job, a gang or an elastic one."""
    worker = draw(demands(index))
    kind: WorkloadKind = "session" if draw(st.integers(0, 3)) == 3 else "job"
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    return Workload(
        name=f"w{index}",
        project=draw(st.sampled_from(owners)),
        user=draw(st.sampled_from(["ana", "bo"])),
        kind=kind,
        preemptible=True if kind == "session" and draw(st.integers(0, 4)) == 0 else None,
        priority=draw(st.sampled_from([None, None, None, 25, 75])) if kind == "job" else None,
        submitted=draw(st.integers(0, 20)),
        expected_runtime=draw(st.sampled_from([None, None, 50, 500])),
        max_runtime=draw(st.sampled_from([None, None, None, 40, 400])),
        saves=draw(st.booleans()),
        guaranteed_workers=draw(st.sampled_from([None, None, None, 1])),
        min_workers=draw(st.integers(1, count)) if draw(st.booleans()) else None,
        workers=tuple(replace(worker, name=f"w{index}-{i}") for i in range(count)),
    )


@st.composite
def pending(draw: st.DrawFn, *, max_workloads: int = 9) -> Snapshot:
    """Draw a snapshot in which nothing runs yet."""
    owned = draw(projects())
    owners = [project.name for project in owned]
    count = draw(st.integers(1, max_workloads))
    return Snapshot(
        now=1000,
        policy=Policy(
            packing=draw(st.sampled_from(["binpack", "binpack", "spread", "frag"])),
            shrink_first=draw(st.booleans()),
            phases=draw(st.sampled_from([Policy().phases, EVERY_PHASE])),
            backfill=draw(st.booleans()),
            users_take_turns=draw(st.booleans()),
        ),
        nodes=draw(nodes()),
        projects=owned,
        workloads=tuple(draw(workloads(index, owners)) for index in range(count)),
    )


@st.composite
def snapshots(draw: st.DrawFn, *, max_workloads: int = 9) -> Snapshot:
    """Draw a snapshot in which some workloads already run, wherever there was room."""
    snapshot = draw(pending(max_workloads=max_workloads))
    placer = CarelessPlacer(snapshot)
    placed = []
    for workload in snapshot.workloads:
        if draw(st.booleans()):
            placed.append(placer.run(workload, since=draw(st.sampled_from([900, 980]))))
        else:
            placed.append(workload)
    return replace(snapshot, workloads=tuple(placed))


@st.composite
def changed(draw: st.DrawFn, *, max_workloads: int = 9) -> Snapshot:
    """Draw a snapshot whose admins lower quotas and limits, or remove a user, while work runs."""
    snapshot = draw(snapshots(max_workloads=max_workloads))

    def lowered(project: Project) -> Project:
        number = MilliGpu(draw(st.sampled_from([0, 500, 1000])))
        numbers = draw(st.sampled_from(["", "limit", "quota and limit"]))
        return replace(
            project,
            limit=number if "limit" in numbers else project.limit,
            quota=number if "quota" in numbers else project.quota,
            former_members=draw(st.sampled_from([(), (), ("ana",), ("bo", "cy")])),
        )

    return replace(snapshot, projects=tuple(lowered(project) for project in snapshot.projects))


@st.composite
def impossible(draw: st.DrawFn) -> Snapshot:
    """Draw a snapshot that no cluster should be in: overbooked, half reserved, partly unknown."""
    snapshot = draw(pending(max_workloads=6))
    names = [*(node.name for node in snapshot.nodes), "gone"]

    def anywhere(worker: Worker) -> Worker:
        return replace(
            worker,
            state=draw(st.sampled_from(WorkerState)),
            node=draw(st.sampled_from(names)),
            devices=tuple(draw(st.lists(st.integers(0, 5), max_size=3))),
            started=draw(st.sampled_from([None, 0, 990, 2000])),
        )

    workloads = tuple(
        replace(
            workload,
            project=draw(st.sampled_from([workload.project, "nobody"])),
            below_min_since=draw(st.sampled_from([None, 0, 990])),
            workers=tuple(anywhere(worker) for worker in workload.workers),
        )
        for workload in snapshot.workloads
    )
    closed = tuple(replace(node, schedulable=draw(st.booleans())) for node in snapshot.nodes)
    owned = tuple(
        replace(project, parent=draw(st.sampled_from([project.parent, "a", "nobody"])))
        for project in snapshot.projects
    )
    return replace(snapshot, nodes=closed, projects=owned, workloads=workloads)


class CarelessPlacer:
    """A placer on the first devices with room; it respects only caps."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.nodes = {node.name: node for node in snapshot.nodes}
        self.milli = {(n.name, d): 1000 for n in snapshot.nodes for d in range(n.devices)}
        self.mib = {place: int(MEMORY) for place in self.milli}
        self.cpu = {n.name: n.cpu_milli or 0 for n in snapshot.nodes}
        self.projects = {p.name: p for p in snapshot.projects}
        self.allocated = dict.fromkeys(self.projects, 0)
        self.built = dict.fromkeys(self.projects, 0)

    def run(self, workload: Workload, *, since: int) -> Workload:
        needed = workload.minimum
        saved = (self.milli.copy(), self.mib.copy())
        saved_sums = (self.cpu.copy(), self.allocated.copy(), self.built.copy())
        workers: list[Worker] = []
        for worker in workload.workers:
            place = self._place(worker, workload) if len(workers) < needed else None
            if place is None:
                break
            workers.append(
                replace(
                    worker,
                    state=WorkerState.RUNNING,
                    node=place[0],
                    devices=place[1],
                    started=since,
                )
            )
        if len(workers) < needed:
            self.milli, self.mib = saved
            self.cpu, self.allocated, self.built = saved_sums
            return workload
        return replace(workload, workers=(*workers, *workload.workers[len(workers) :]))

    def _place(self, worker: Worker, workload: Workload) -> tuple[str, tuple[int, ...]] | None:
        whole = worker.gpus > 1000
        count = (
            worker.gpus // 1000
            if whole
            else worker.devices_wanted
            if self._requests_devices(worker)
            else 0
        )
        milli = 1000 if whole else int(worker.gpus)
        mib = worker.gpu_memory_mib or milli * MEMORY // 1000
        quota = count * (milli or -(-1000 * mib // MEMORY))
        if not self._may(workload, quota):
            return None
        for name, node in self.nodes.items():
            if worker.gpu_types and node.gpu_type not in worker.gpu_types:
                continue
            fitting = [
                d
                for d in range(node.devices)
                if self.milli[name, d] >= milli and self.mib[name, d] >= mib
            ][:count]
            if len(fitting) == count and self.cpu[name] >= worker.cpu_milli:
                for device in fitting:
                    self.milli[name, device] -= milli
                    self.mib[name, device] -= mib
                self.cpu[name] -= worker.cpu_milli
                self._book(workload, quota)
                return name, tuple(fitting)
        return None

    @staticmethod
    def _requests_devices(worker: Worker) -> bool:
        return bool(worker.gpus or worker.gpu_memory_mib)

    def _path(self, workload: Workload) -> list[Project]:
        project = self.projects[workload.project]
        return [project, self.projects[project.parent]] if project.parent else [project]

    def _may(self, workload: Workload, quota: int) -> bool:
        for project in self._path(workload):
            if project.limit is not None and self.allocated[project.name] + quota > project.limit:
                return False
            cap = self._build_cap(project)
            if not workload.is_preemptible and self.built[project.name] + quota > cap:
                return False
        return True

    def _build_cap(self, project: Project) -> int:
        quota = project.quota
        if not isinstance(quota, int):
            quota = MilliGpu(
                sum(
                    p.quota
                    for p in self.projects.values()
                    if p.parent == project.name and isinstance(p.quota, int)
                )
            )
        return min(quota, quota if project.build_quota is None else project.build_quota)

    def _book(self, workload: Workload, quota: int) -> None:
        for project in self._path(workload):
            self.allocated[project.name] += quota
            if not workload.is_preemptible:
                self.built[project.name] += quota
