"""The contract between the controller and the place where workloads really run.

Implemented by `local` (this machine, SQLite, supervised processes), `kubernetes` (an API server's
Jobs and pods) and `simulated` (rows only). The cluster is the state of record: it starts every
worker and remembers everything, so the service may die at any instant. One contract suite
(`tests/contract`) runs over all of them; it says what Kubernetes does not keep.
"""

from collections.abc import AsyncIterator, Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from runai.hub_service.model.device import Device
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import (
    Allocation,
    HistoryEvent,
    Process,
    ProjectRecord,
    ProjectSpec,
    WorkerEnvironment,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.scheduler.model.snapshot import Plan, Snapshot
from runai.hub_service.wire.elastic_messages import Status, Target

ProjectChange = Callable[[ProjectSpec | None], ProjectSpec]
"""From what a project is, None where there is none, to what it is to be; it may refuse."""

Told = Callable[[Container[WorkloadId]], None]
"""Hears of some who know now what a plan says of them."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A decision that could not be carried out: the next cycle sees the world as it is."""

    workload: WorkloadId
    worker: str
    text: str


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of one worker's log: whole lines, as bytes, of one attempt (1, 2, …)."""

    worker: int
    attempt: int
    lines: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """What a node's agent has seen: which devices there are, and which pods have them."""

    at: float
    """When, in Unix seconds by our clock."""
    pods: Mapping[str, tuple[str, ...]]
    """UUIDs by `namespace/name`."""
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes that a program wrote, to its standard error or else its standard output."""

    data: bytes
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended, or why it never began."""

    exit_code: int
    why: str = ""


class Driven(Protocol):
    """What the controller drives: look, and do what was decided."""

    async def changed(self, *, pressing: bool = False) -> None:
        """Return when anything that a snapshot shows has changed since the last `observe`.

        `pressing`: not for that alone which gives nobody a device, as when somebody who only waits
        is deleted; who cannot tell returns as without it. Changes that happen while nobody waits
        are remembered; many changes wake once.
        """

    async def observe(self) -> Snapshot:
        """Return everything the core needs: nodes, projects, workloads that want or hold devices.

        Suspended, retrying (before their time) and finished workloads are left out.
        """

    async def apply(self, plan: Plan, *, told: Told = lambda _: None) -> Sequence[Refused]:
        """Carry out the decisions in the plan's order; a refused one costs only itself.

        `told` may be called with those who know what it says of them, while others do not yet.

        Idempotent: a decision that is already true does nothing. `start` of all of a gang's minimum
        workers starts them together. `stop` returns at once; the worker holds its devices as
        `stopping` until its processes are gone. `reserve`, `unreserve` and `wait` are remembered
        with their reasons. A second `apply` of the same plan after a crash leaves the same world.
        """


class WorkerMessages(Protocol):
    """What the workers of elastic jobs hear and tell where they share no directory with us.

    A worker is named by its pod, `namespace/name`. All raise NotFound for one that is none.
    """

    async def worker_target(self, pod: str, seen: int) -> Target:
        """Return its job's target as soon as its generation is above `seen`."""

    async def worker_told(self, pod: str, status: Status) -> None:
        """Take in what it tells."""

    async def worker_ended(self, pod: str, exit_code: int) -> int:
        """Return how its pod is to end, now that its program ended so; a repeat says the same."""


class Programs(Protocol):
    """Programs beside a workload's own, where that runs out of its user's reach."""

    async def execute(
        self, workload: WorkloadId, worker: int, command: Sequence[str], stdin: bytes
    ) -> AsyncIterator[Piece | Ended]:
        """Begin a program beside a worker; return what it writes, and at last how it ends.

        Closing the iterator ends the connection, not the program.

        Raises:
            Conflict: the worker does not run, or the platform may not do that.
            Unavailable: where it runs does not answer.
        """


class Cluster(Driven, Protocol):
    """Observe, apply, and keep workloads and projects.

    All methods are safe to cancel; what was acknowledged is durable. Methods that name a workload
    or project raise NotFound when it is unknown. None of them checks who asks: the API does.
    """

    async def run(self) -> None:
        """Own the background work (watching processes, retries) until cancelled; call once.

        On start it first adopts what runs already. It never stops a job when it is cancelled
        itself.
        """

    # -- workloads -------------------------------------------------------------------------------

    async def submit(
        self, specs: Sequence[WorkloadSpec], *, pressing: bool = True
    ) -> Sequence[WorkloadRecord]:
        """Store new workloads, all or none (an array is several specs).

        Those that are not `pressing` are decided about with others, or a little later.

        Where they have a key that their user has used before, nothing is stored: what that
        submission has stored is returned.

        Raises:
            Conflict: a name is taken in its project by a workload that is not finished, or finished
            but
                not deleted (`hint` says how to delete it); nothing is stored then.
        """

    async def submitted(self, user: str, key: str) -> Sequence[WorkloadRecord]:
        """Return what a user has submitted under a key that is not ""."""

    async def unfinished_jobs(self, user: str) -> int:
        """Return how many jobs of a user are not finished; suspended ones are not."""

    async def names(self) -> Container[WorkloadId]:
        """Return which names of workloads are taken: a view, good until something is awaited."""

    async def workloads(self) -> Sequence[WorkloadRecord]:
        """Return all workloads, finished ones included, oldest first."""

    async def workload(self, workload: WorkloadId) -> WorkloadRecord:
        """Return one workload."""

    async def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return what happened to a workload, oldest first."""

    async def suspend(self, workload: WorkloadId, *, by: str) -> WorkloadRecord:
        """Take a job out of the queue and stop it if it runs; a repeat changes nothing.

        Raises:
            Conflict: it is finished, or a session (those are stopped by deleting them).
        """

    async def resume(self, workload: WorkloadId, *, by: str) -> WorkloadRecord:
        """Put a suspended job back into the queue, in its old place; a repeat changes nothing."""

    async def scale(
        self, workload: WorkloadId, *, workers: int | None, min_workers: int | None, by: str
    ) -> WorkloadRecord:
        """Let an elastic job have at most and at least so many workers; None: as before.

        It goes on; surplus workers leave as those do that the scheduler stops. A repeat changes
        nothing.

        Raises:
            Conflict: it is finished, a session, or no elastic job of several workers.
            InvalidRequest: these numbers cannot be meant.
        """

    async def delete(self, workload: WorkloadId, *, by: str) -> None:
        """Stop it if it holds anything and forget it when its processes are gone.

        A repeat changes nothing.
        """

    async def attach(self, workload: WorkloadId, process: Process) -> WorkloadRecord:
        """Tell which process is the session that somebody else started; it runs from now on.

        The allocation is released when that process ends, whoever ends it.

        Raises:
            Conflict: the session holds no allocation (it was released meanwhile).
        """

    async def release(self, workload: WorkloadId, *, why: str) -> WorkloadRecord:
        """Give a running session's GPUs to others; it goes on without them. A repeat does nothing.

        Raises:
            Conflict: it is a job, or does not run.
        """

    async def regain(self, workload: WorkloadId, *, by: str) -> WorkloadRecord:
        """Queue a released session for its GPUs; it goes on meanwhile.

        Raises:
            Conflict: it was not released.
        """

    async def wait(self, workload: WorkloadId, seen: WorkloadRecord) -> WorkloadRecord:
        """Return the workload as soon as it differs from `seen` (so a spawner waits)."""

    async def environment(self, workload: WorkloadId, worker: int = 0) -> WorkerEnvironment:
        """Return what hands a worker its devices (a spawner starts the session with it).

        Raises:
            Conflict: the worker holds no allocation.
        """

    def logs(
        self, workload: WorkloadId, *, worker: int | None, tail: int | None, follow: bool
    ) -> AsyncIterator[LogChunk]:
        """Yield what its workers wrote, over all attempts; `follow` goes on until it is finished.

        `tail` starts with the last so many lines of each worker. Pauses do not end a followed log.
        """

    async def progress(
        self, only: Collection[WorkloadId] | None = None
    ) -> Mapping[WorkloadId, Progress]:
        """Return what jobs have reported of themselves last; those that did not are left out.

        `only` these are looked at, where somebody asks for them alone; None: all.
        """

    # -- nodes and projects ----------------------------------------------------------------------

    async def holders(self) -> Mapping[WorkloadId, WorkloadRecord]:
        """Return the workloads that hold devices or have released them: of thousands, few.

        The same object until one of them changes.
        """

    async def devices(self) -> Mapping[str, Sequence[Device]]:
        """Return the devices of each node; the same object until one of them changes."""

    async def note_faults(self, node: str, faults: Mapping[str, str]) -> None:
        """Take devices out for these reasons, by UUID, and back in where the reason is "".

        Nothing new is placed on a broken device; whoever holds it goes on and reads of it in its
        history. Devices that are not named stay as they are; a repeat changes nothing.
        """

    async def note_holders(self, node: str, seen: Seen) -> None:
        """Take note of a node's devices and of which pods have them.

        Who gives out devices itself learns nothing by it.
        """

    async def allocations(self, node: str) -> Sequence[Allocation]:
        """Return the workers that run or stop on a node, for its agent."""

    async def note(self, workload: WorkloadId, text: str) -> None:
        """Write a warning into a workload's history: something was done about it."""

    async def projects(self) -> Sequence[ProjectRecord]:
        """Return all projects, oldest first."""

    async def put_project(self, spec: ProjectSpec) -> ProjectRecord:
        """Create or change a project; the next cycle uses it.

        Raises:
            InvalidRequest: the parent is unknown or the tree would have a cycle.
        """

    async def change_project(self, name: str, change: ProjectChange) -> ProjectRecord:
        """Make of a project, as it is when that is written, what `change` makes of it.

        Nobody else's change comes in between: `change`, which may refuse by raising, is asked again
        if one does.

        Raises:
            Conflict: others change it all the time.
            InvalidRequest: the parent is unknown or the tree would have a cycle.
        """

    async def delete_project(self, name: str) -> None:
        """Forget a project; the next one of its name finds no workload of it.

        Raises:
            Conflict: it has children or workloads that are not finished, or finished ones that are
                not the platform's to forget.
        """


LONGEST_LINE_BYTES = 2**20
"""A longer line is told as several, so that nobody has to keep more of it."""


def cut(read: bytes) -> tuple[bytes, bytes]:
    r"""Return the whole lines of what was read, and the beginning of one that goes on.

    >>> cut(b"one\ntwo\nthr")
    (b'one\ntwo\n', b'thr')
    """
    end = read.rfind(b"\n") + 1
    lines, rest = read[:end], read[end:]
    while len(rest) >= LONGEST_LINE_BYTES:
        lines += rest[:LONGEST_LINE_BYTES] + b"\n"
        rest = rest[LONGEST_LINE_BYTES:]
    return lines, rest
