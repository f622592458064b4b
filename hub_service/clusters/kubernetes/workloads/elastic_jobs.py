"""Elastic jobs of several workers: who is to train, what was heard of them, what the core is told.

Each job's state stands in an annotation of its Job before any worker hears of it; how far each
worker is they tell again after a restart, so it is kept in memory alone. What follows from what is
`membership`'s, as on one machine. Owned by `scheduling`, which draws the records.
"""

import asyncio
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.events.pod_conditions import tell_event
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import ELASTIC, Job, elastic_text
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import Shape
from runai.hub_service.clusters.kubernetes.workloads.workload_records import Known, record_of_job
from runai.hub_service.clusters.states import membership
from runai.hub_service.clusters.states.membership import throughput_for_core
from runai.hub_service.clusters.states.state import ACTIVE, Row
from runai.hub_service.model.records import (
    ElasticRules,
    ElasticState,
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
)
from runai.hub_service.scheduler.model.snapshot import Move, Plan, Start, Stop
from runai.hub_service.wire.elastic_messages import Status, WorkerPhase

LEFT = 143
"""How a pod ends whose worker left while others go on: its Job does not count it."""
COMES_UP_WITHIN_S = 60.0
"""So long those who are up wait for others that were bound with them: images are large."""
FIRST_PORT, PORTS = 10_000, 20_000
"""Each generation has a port of its own, below those that systems give out themselves."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """An elastic job as it is now."""

    job: Job
    record: WorkloadRecord
    addresses: Mapping[str, str]
    """Those of its workers' pods, by the workers' names."""


def elastic_jobs(known: Known) -> Mapping[WorkloadId, Drawn]:
    """Return the elastic jobs that are not finished."""
    pods: dict[str, list[Pod]] = {
        uid: [] for uid, job in known.jobs.items() if job.is_elastic and not job.is_finished
    }
    for pod in known.pods if pods else ():
        if pod.owner is not None and pod.owner.uid in pods:
            pods[pod.owner.uid].append(pod)
    drawn = {}
    for uid, of_job in pods.items():
        record = record_of_job(known.jobs[uid], of_job, known)
        addresses = {f"{record.id}-{pod.index}": pod.address for pod in of_job if pod.holds}
        drawn[record.id] = Drawn(known.jobs[uid], record, addresses)
    return drawn


class ElasticJobs:
    """The elastic jobs of one cluster."""

    def __init__(self, api: Api, take: Callable[[Object], None], rules: ElasticRules) -> None:
        """Begin with what stands on the Jobs; `take` is told of each Job that was changed."""
        self._api = api
        self._take = take
        self.rules = rules
        self._known: dict[str, ElasticState] = {}
        self._over: dict[str, set[str]] = {}
        """Workers that were told how to end, by the UIDs of their Jobs."""
        self._turn = asyncio.Lock()
        """Held from looking at a state until what follows from it is written: cycles, and whoever
        scales a job or ends a worker meanwhile, would overrule each other."""
        self.failed = False
        """Whether a state could not be written."""

    def state_of(self, job: Job) -> ElasticState | None:
        """Return the state of an elastic job, of one process too; None: it is not one."""
        return self._known.get(job.uid, job.elastic) if job.is_elastic else job.elastic

    def shape(self, drawn: Drawn, now: float) -> Shape:
        """Return what the core is told."""
        state = drawn.record.elastic
        assert state is not None
        keeps = bool(state.finishers) or membership.keeps_its_size(drawn.record, now, self.rules)
        up = [worker for worker in drawn.record.workers if _is_up(worker)]
        most = membership.most_gpus(drawn.record)
        since = [int(worker.started) for worker in up if worker.started is not None]
        return Shape(
            surplus=not keeps,
            stays_away={
                worker
                for worker, times in state.losses.items()
                if times > membership.MOST_LOSSES_OF_A_WORKER
            },
            throughput=throughput_for_core(state.throughput, most, pays_from=self.rules.pays_from),
            # Who speaks the protocol saves a checkpoint when told to stop.
            checkpointed=max(since, default=None) if state.phases else None,
        )

    async def settled(
        self, draw: Callable[[], Mapping[WorkloadId, Drawn]], now: float
    ) -> Mapping[WorkloadId, Drawn]:
        """Bring the targets in line with the workers; return the jobs as they are then."""
        self.failed = False
        async with self._turn:
            jobs = draw()
            for drawn in jobs.values():
                await self._settle(drawn, now, ())
            seen = {drawn.job.uid for drawn in jobs.values()}
            self._known = {uid: state for uid, state in self._known.items() if uid in seen}
            self._over = {uid: names for uid, names in self._over.items() if uid in seen}
            return draw() if jobs else jobs

    async def prepare(
        self, plan: Plan, draw: Callable[[], Mapping[WorkloadId, Drawn]], now: float
    ) -> None:
        """Tell workers that a plan stops, before they are; note whose size it changes."""
        if changing := [d for d in plan.decisions if isinstance(d, Start | Stop | Move)]:
            async with self._turn:
                await self._prepare(changing, draw, now)

    async def shrink(
        self, draw: Callable[[], Drawn | None], leaving: Collection[str], now: float
    ) -> None:
        """Tell a job's workers that some of them leave, by name, before anybody stops them."""
        async with self._turn:
            if (drawn := draw()) is None:
                return
            assert drawn.record.elastic is not None
            state = self._known[drawn.job.uid] = replace(drawn.record.elastic, sized=now)
            if leaving:
                drawn = replace(drawn, record=replace(drawn.record, elastic=state))
                await self._settle(drawn, now, leaving)

    def heard(self, drawn: Drawn, worker: str, status: Status) -> bool:
        """Take in what a worker tells; tell whether it is news."""
        before = drawn.record.elastic
        step = membership.heard(Row(drawn.record), {worker: status})
        assert step.row is not None
        state = step.row.record.elastic
        assert state is not None
        self._known[drawn.job.uid] = state
        return state != before

    async def ended(
        self, draw: Callable[[], Drawn | None], worker: str, exit_code: int
    ) -> int | None:
        """Return how the pod of a worker is to end whose program ended so; None: its job is gone.

        Only the last one of those who finish together ends with 0: with it their Job is complete,
        and Kubernetes stops whoever is left. A loss that the others go on without is no failure.
        """
        async with self._turn:
            drawn = draw()
            return None if drawn is None else await self._ended(drawn, worker, exit_code)

    # -- inside ------------------------------------------------------------------------------------

    async def _prepare(
        self,
        changing: Sequence[Start | Stop | Move],
        draw: Callable[[], Mapping[WorkloadId, Drawn]],
        now: float,
    ) -> None:
        jobs = draw()
        leaving: dict[WorkloadId, set[str]] = {}
        for decision in changing:
            if (drawn := jobs.get(decision.workload)) is None:
                continue
            state = drawn.record.elastic
            assert state is not None
            self._known[drawn.job.uid] = replace(state, sized=now)
            if not isinstance(decision, Start):
                leaving.setdefault(decision.workload, set()).add(decision.worker)
        jobs = draw() if leaving else {}
        for name, workers in leaving.items():
            await self._settle(jobs[name], now, workers)

    async def _ended(self, drawn: Drawn, worker: str, exit_code: int) -> int:
        state = drawn.record.elastic
        assert state is not None
        row = Row(drawn.record, halt="done" if state.finishers else "")
        index = next(w.index for w in drawn.record.workers if w.name == worker)
        if exit_code == LEFT:
            return LEFT
        if exit_code == 0:
            over = self._over.setdefault(drawn.job.uid, set())
            over.add(worker)
            if membership.is_done_by(row, index):
                row = membership.done(row)
                await self._keep(drawn, row)
            assert row.record.elastic is not None
            counted = row.record.elastic.finishers or [w.name for w in row.active]
            others = {w.name for w in row.active if w.name in counted} - over
            return LEFT if others else 0
        if membership.goes_on_without(row, index):
            await self._keep(drawn, membership.without(row, index))
            return LEFT
        return exit_code if membership.is_of_its_end(row, row.record.workers[index]) else LEFT

    async def _settle(self, drawn: Drawn, now: float, leaving: Collection[str]) -> None:
        state, record = drawn.record.elastic, drawn.record
        assert state is not None
        if state.finishers:
            is_left = not any(worker.state in ACTIVE for worker in record.workers)
            if is_left and not any(worker.exit_code == 0 for worker in record.workers):
                # All have left, and nobody has ended with 0: it goes on from its checkpoint. Else
                # its Job says in a moment that it is complete, and nobody is to be told anything.
                state = replace(state, finishers=())
            await self._write(drawn, state)
            return
        state = replace(state, phases=_told_by(record, state))
        workers = tuple(_shown(worker, leaving, state) for worker in record.workers)
        row = Row(replace(record, workers=workers, elastic=state))
        if _waits_for_others(drawn, row, leaving, now):
            await self._write(drawn, state)
            return

        def store_of(first: str) -> str:
            """Name a place at the first rank; "" before its pod has an address."""
            if not (host := drawn.addresses.get(first, "")):
                return ""
            gen = state.target.gen + 1 if state.target is not None else 1
            port = FIRST_PORT + zlib.crc32(f"{drawn.job.uid}/{gen}".encode()) % PORTS
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

        step = membership.followed(row, now, store_of)
        assert step.row is not None
        after = step.row.record.elastic
        assert after is not None
        if await self._write(drawn, after):
            for _kind, text in step.events:
                with suppress(ApiError):
                    await tell_event(self._api, drawn.job, "Resized", text)

    async def _keep(self, drawn: Drawn, row: Row) -> None:
        """Write what must be known after a restart, before anybody acts on it.

        Raises:
            ApiError: it could not be written.
        """
        assert row.record.elastic is not None
        await self._change(drawn, row.record.elastic)

    async def _write(self, drawn: Drawn, state: ElasticState) -> bool:
        """Write a state where it is another one; tell whether it is kept."""
        try:
            await self._change(drawn, state)
        except ApiError:
            self.failed = True  # with the next cycle
            return False
        return True

    async def _change(self, drawn: Drawn, state: ElasticState) -> None:
        job, before = drawn.job, drawn.record.elastic
        if _kept(state) != _kept(job.elastic):
            body = {"metadata": {"uid": job.uid, "annotations": {ELASTIC: elastic_text(state)}}}
            self._take(await self._api.patch(job.path, body))
        # Since it was drawn, workers may have told something: those who end tell it once.
        now = self._known.get(job.uid, before)
        news = {f: getattr(now, f) for f in _HEARD if getattr(now, f) != getattr(before, f)}
        self._known[job.uid] = replace(state, **news)


_HEARD = ("phases", "throughput", "global_batch", "steps")
"""What workers tell of a state."""


def _is_up(worker: WorkerRecord) -> bool:
    return worker.state in {"starting", "running"}


def _told_by(record: WorkloadRecord, state: ElasticState) -> Mapping[str, WorkerPhase]:
    """Return what those told who are there; the next pod of a worker has told nothing."""
    there = {worker.name for worker in record.workers if worker.state in ACTIVE}
    return {name: phase for name, phase in state.phases.items() if name in there}


def _shown(worker: WorkerRecord, leaving: Collection[str], state: ElasticState) -> WorkerRecord:
    """Show a worker as it counts: who leaves stops already, who is not up yet is not there.

    Who has told something is up, though its pod's watch has not said so.
    """
    if worker.state == "starting":
        worker = replace(worker, state="running" if worker.name in state.phases else "pending")
    return (
        replace(worker, state="stopping") if worker.name in leaving and _is_up(worker) else worker
    )


def _waits_for_others(drawn: Drawn, row: Row, leaving: Collection[str], now: float) -> bool:
    """Tell whether a job that begins waits for more of its workers to come up."""
    state = row.record.elastic
    assert state is not None
    ranks = state.target.ranks if state.target is not None else ()
    running = {worker.name for worker in row.record.workers if worker.state == "running"}
    if running & set(ranks) or (ranks and not running):
        return False
    if len(running) < drawn.record.spec.min_workers:
        return True
    awaited = {w.name for w in drawn.record.workers if w.state in {"starting", "reserved"}}
    awaited -= running.union(leaving)
    coming = [worker for worker in drawn.record.workers if worker.name in awaited]
    since = [*drawn.job.starts[-1:], *(w.started for w in coming if w.started is not None)]
    return bool(coming) and now < max(since, default=now) + COMES_UP_WITHIN_S


def _kept(state: ElasticState | None) -> ElasticState:
    return replace(state or ElasticState(), phases={})
