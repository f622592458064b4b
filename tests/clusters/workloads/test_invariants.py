"""Invariants of the rows: any order of acts by users, processes and scheduler keeps them sound."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from labs import NODE, Clock
from runai.hub_service.clusters.simulated import MemoryStore, simulated_cluster
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import (
    Process,
    ProjectSpec,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)
from runai.hub_service.scheduler import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.elastic_messages import Target, WorkerPhase, WorkerStatus
from runai.hub_service.wire.errors import Conflict

DEVICES = [Device(i, f"SIM-{i}", "Simulated GPU", 1000, simulated=True) for i in range(3)]
PROJECTS = ("vision", "nlp")
NAMES = st.tuples(st.sampled_from(PROJECTS), st.sampled_from(["a", "b", "c", "d"]))
EXIT_CODES = st.sampled_from([0, 0, 1, 143, -9])


class Cluster(RuleBasedStateMachine):
    """A cluster of rows, driven by users, the scheduler, ends of processes, time and restarts."""

    @initialize(quotas=st.tuples(st.integers(0, 4), st.integers(0, 4)))
    def begin(self, quotas: tuple[int, int]) -> None:
        self.clock = Clock()
        self.store = MemoryStore()
        self.targets: dict[tuple[str, float, int], Target] = {}
        self.generations: dict[tuple[str, float], int] = {}
        self.restart()
        for name, quota in zip(PROJECTS, quotas, strict=True):
            self.do(self.cluster.put_project(ProjectSpec(name, quota=MilliGpu(quota * 500))))

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine that waits for nothing; a conflict is an answer, not an error."""
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        except Conflict:
            return None
        raise AssertionError(work)

    def records(self) -> list[WorkloadRecord]:
        found: list[WorkloadRecord] = self.do(self.cluster.workloads())
        return found

    def known(self, name: tuple[str, str]) -> WorkloadRecord | None:
        by_id = {record.id: record for record in self.records()}
        return by_id.get("/".join(name))

    @rule()
    def restart(self) -> None:
        self.cluster = simulated_cluster({NODE: DEVICES}, clock=self.clock, store=self.store)

    @rule(
        name=NAMES,
        gpus=st.sampled_from([0, 250, 500, 1000, 2000]),
        memory=st.sampled_from([0, 0, 0, 300]),
        workers=st.integers(1, 3),
        kind=st.sampled_from(["job", "job", "session"]),
        preemptible=st.booleans(),
        backoff_limit=st.integers(0, 2),
    )
    def submit(self, name, gpus, memory, workers, kind, preemptible, backoff_limit) -> None:
        session = kind == "session"
        spec = WorkloadSpec(
            name[0],
            name[1],
            "ana",
            kind,
            None if session else ("train",),
            gpus=MilliGpu(0 if memory else gpus),
            gpu_memory_mib=memory,
            workers=1 if session else workers,
            min_workers=1 if session else workers,
            preemptible=preemptible if session else True,
            backoff_limit=backoff_limit,
        )
        self.do(self.cluster.submit([spec]))

    @rule(
        name=NAMES,
        gpus=st.integers(1, 3),
        workers=st.integers(1, 3),
        min_workers=st.integers(1, 3),
        backoff_limit=st.integers(0, 2),
    )
    def submit_elastic(self, name, gpus, workers, min_workers, backoff_limit) -> None:
        self.clock.at += 1  # a new workload of a deleted one's name is another one
        spec = WorkloadSpec(
            name[0],
            name[1],
            "ana",
            "job",
            ("train",),
            gpus=MilliGpu(1000 * (gpus if workers == 1 else 1)),
            gpus_max=MilliGpu(3000 if workers == 1 else 0),
            workers=workers,
            min_workers=min(min_workers, workers),
            elastic=True,
            backoff_limit=backoff_limit,
        )
        self.do(self.cluster.submit([spec]))

    @rule(name=NAMES, many=st.integers(1, 6), gpus=st.sampled_from([0, 250, 1000]))
    def submit_array(self, name, many, gpus) -> None:
        spec = WorkloadSpec(
            *(name[0], name[1], "ana", "job", ("train",)), gpus=MilliGpu(gpus), array=many
        )
        self.do(self.cluster.submit([spec]))

    @rule(
        name=NAMES,
        index=st.integers(0, 5),
        action=st.sampled_from(["suspend", "resume", "delete", "end"]),
    )
    def act_on_an_element(self, name, index, action) -> None:
        element = f"{'/'.join(name)}-{index}"
        if element not in self.do(self.cluster.names()):
            return
        if action != "end":
            self.do(getattr(self.cluster, action)(element, by="ana"))
        elif element in {record.id for record in self.records()}:
            with suppress(Conflict):
                self.cluster.executor.complete(element, 0)

    @rule(
        name=NAMES,
        worker=st.integers(0, 2),
        phase=st.sampled_from(["starting", "ready", "running", "left"]),
        gpus=st.integers(0, 3),
        speed=st.sampled_from([0.0, 5.0, 10.0, 11.0]),
    )
    def report_status(self, name, worker, phase, gpus, speed) -> None:
        record = self.known(name)
        if record is not None:
            worker_name = f"{record.id}-{worker}"
            status = WorkerStatus(worker_name, 0, WorkerPhase(phase), 1, 0, speed, gpus)
            self.cluster.report_statuses(record.id, {worker_name: status})

    @rule()
    def cycle(self) -> None:
        plan = decide(self.do(self.cluster.observe()))
        assert list(self.do(self.cluster.apply(plan))) == []
        before = self.records()
        again = self.do(self.cluster.apply(plan))
        starts = {d.workload for d in plan.decisions if d.kind in {"start", "reserve"}}
        assert {refused.workload for refused in again} <= starts
        assert before == self.records()

    @rule(name=NAMES, exit_code=EXIT_CODES, worker=st.integers(0, 2))
    def end(self, name, exit_code, worker) -> None:
        record = self.known(name)
        if record is not None and worker < len(record.workers):
            try:
                self.cluster.executor.complete(record.id, exit_code, worker=worker)
            except Conflict:
                return

    @rule()
    def obey(self) -> None:
        """End every worker that has orders to stop."""
        for record in self.records():
            for worker in record.workers:
                known = self.known((record.spec.project, record.spec.name))
                if known is not None and known.workers[worker.index].state == "stopping":
                    self.cluster.executor.complete(record.id, 143, worker=worker.index)

    @rule(name=NAMES, action=st.sampled_from(["suspend", "resume", "delete"]))
    def act_on_a_workload(self, name, action) -> None:
        record = self.known(name)
        if record is not None:
            self.do(getattr(self.cluster, action)(record.id, by="ana"))

    @rule(name=NAMES)
    def attach(self, name) -> None:
        record = self.known(name)
        if record is not None:
            self.do(self.cluster.attach(record.id, Process(4711, 1.0)))

    @rule(seconds=st.sampled_from([1, 10, 130, 300]))
    def pass_time(self, seconds) -> None:
        self.clock.at += seconds
        self.cluster.apply_due_transitions()

    # -- invariants ------------------------------------------------------------------------------

    @invariant()
    def no_device_carries_more_than_it_has(self) -> None:
        milli: dict[int, int] = {}
        mib: dict[int, int] = {}
        for record in self.records():
            for worker in record.workers:
                if worker.state in {"starting", "running", "stopping"}:
                    for share in worker.devices:
                        milli[share.device] = milli.get(share.device, 0) + share.gpus
                        part = record.spec.gpu_memory_mib or share.gpus
                        mib[share.device] = mib.get(share.device, 0) + part
        assert all(amount <= 1000 for amount in mib.values())

    @invariant()
    def inactive_workers_have_no_devices(self) -> None:
        for record in self.records():
            for worker in record.workers:
                if worker.state in {"pending", "finished"}:
                    assert worker.devices == ()

    @invariant()
    def states_and_workers_agree(self) -> None:
        resting = {"queued", "paused", "suspended", "retrying"}
        for record in self.records():
            up = {w.state for w in record.workers} & {"starting", "running", "stopping"}
            if record.state.finished:
                assert {"finished"} == {w.state for w in record.workers}
                assert record.finished is not None
            elif record.state in resting:
                assert not up
            else:
                assert up
            if record.state is WorkloadState.RETRYING:
                assert record.not_before is not None

    @invariant()
    def gangs_start_whole(self) -> None:
        for record in self.records():
            states = [w.state for w in record.workers]
            if record.state in {"starting", "running"} and not record.spec.elastic:
                assert "pending" not in states
                assert "reserved" not in states

    @invariant()
    def elastic_target_ranks_are_active(self) -> None:
        for record in self.records():
            if record.elastic is None or record.elastic.target is None or record.state.finished:
                continue
            states = {w.name: w.state for w in record.workers}
            done = "finished" in states.values()
            up = {"starting", "running", *(["finished", "stopping"] if done else [])}
            assert {states[name] for name in record.elastic.target.ranks} <= up
            resting = record.state in {"paused", "suspended", "retrying"}
            assert not resting or record.elastic.target.ranks == ()

    @invariant()
    def generations_only_grow(self) -> None:
        for record in self.records():
            if record.elastic is not None and record.elastic.target is not None:
                key = (record.id, record.submitted, record.elastic.target.gen)
                first_target = self.targets.setdefault(key, record.elastic.target)
                assert first_target == record.elastic.target
                born = (record.id, record.submitted)
                assert record.elastic.target.gen >= self.generations.get(born, 0)
                self.generations[born] = record.elastic.target.gen

    @invariant()
    def restart_changes_nothing(self) -> None:
        again = simulated_cluster({NODE: DEVICES}, clock=self.clock, store=self.store)
        assert written(self.records()) == written(self.do(again.workloads()))
        assert self.do(again.projects()) == self.do(self.cluster.projects())


def written(records: Sequence[WorkloadRecord]) -> list[WorkloadRecord]:
    """Drop waiting reasons and queue positions: the first cycle after a restart sets them anew."""
    return [r if r.position is None else replace(r, position=0, reason=None) for r in records]


TestInvariants = Cluster.TestCase
TestInvariants.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
