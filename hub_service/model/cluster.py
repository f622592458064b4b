"""Contract between the controller and a cluster that runs workloads.

Implementations: `local` (this machine, SQLite, supervised processes), `kubernetes` (an API server's
Jobs and pods) and `simulated` (rows only). The cluster is the state of record: it starts every
worker and stores everything, so the service may die at any instant. One contract suite
(`tests/contract`) covers all of them, and marks where Kubernetes deviates.
"""

from collections.abc import AsyncIterator, Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from runai.hub_service.model.changes import WorkloadChanges
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
from runai.hub_service.wire.elastic_messages import Target, WorkerStatus
from runai.hub_service.wire.program_schemas import MissingOutput

ProjectChange = Callable[[ProjectSpec | None], ProjectSpec]
"""Returns the changed project, given the current one or None; may raise to refuse."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A decision that could not be carried out; the next cycle sees the actual state."""

    workload: WorkloadId
    worker: str
    text: str


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A chunk of one worker's log: whole lines, as bytes, of one attempt (1, 2, …)."""

    worker: int
    attempt: int
    lines: bytes
    """Whole lines, or a part: the first line continues the worker's parts before it."""
    missing: MissingOutput | None = None
    """Output that is not kept here; `lines` is then empty."""
    is_part: bool = False
    """True if `lines` is the beginning of a line, or more of it, that has not ended."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node agent's view: devices of the node, and the pods that have them."""

    at: float
    """Time of the view, in Unix seconds by the service's clock."""
    pods: Mapping[str, tuple[str, ...]]
    """UUIDs by `namespace/name`."""
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Bytes that a program wrote, to standard error or else to standard output."""

    data: bytes
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """End of a program, or why it never started."""

    exit_code: int
    why: str = ""


class ControlledCluster(Protocol):
    """Part of the contract that the controller drives: observe and apply."""

    async def changed(self) -> None:
        """Return once anything in the snapshot has changed since the last `observe`.

        Changes without a waiting caller are remembered; many changes wake once.
        """

    async def observe(self) -> Snapshot:
        """Return the snapshot: nodes, projects, workloads that want or hold devices.

        Suspended, retrying (before their time) and finished workloads are left out.
        """

    async def apply(self, plan: Plan) -> Sequence[Refused]:
        """Carry out the decisions in order; a refused one does not affect the rest.

        Idempotent: a decision that is already true does nothing. `start` of all of a gang's minimum
        workers starts them together. `stop` returns at once; the worker holds its devices as
        `stopping` until its processes are gone. `reserve`, `unreserve` and `wait` are stored with
        their reasons. A second `apply` of the same plan after a crash leads to the same state.
        """


class WorkerMessages(Protocol):
    """Messages to and from workers of elastic jobs that share no directory with the service.

    A pod, `namespace/name`, identifies a worker. All methods raise NotFound if it is none.
    """

    async def worker_target(self, pod: str, seen: int) -> Target:
        """Return the job's target as soon as its generation is above `seen`."""

    async def store_worker_status(self, pod: str, status: WorkerStatus) -> None:
        """Store the worker's status."""

    async def worker_ended(self, pod: str, exit_code: int) -> int:
        """Return the code that a worker's pod must exit with, after its program exited.

        It may differ from `exit_code`, the program's own: 0 completes the whole Job, so only the
        last worker to finish gets it. A repeat returns the same.
        """


class Programs(Protocol):
    """Programs beside a workload's own, on clusters that users have no access to."""

    async def execute(
        self,
        workload: WorkloadId,
        worker: int,
        command: Sequence[str],
        stdin: bytes,
        *,
        uid: str = "",
    ) -> AsyncIterator[OutputChunk | ProgramEnd]:
        """Start a program beside a worker; return its output and finally its exit.

        Closing the iterator ends the connection, not the program.

        Raises:
            Conflict: the worker does not run, the platform may not start programs there, or it is
                another workload than that of a non-empty uid.
            Unavailable: the node does not answer.
        """


class Cluster(ControlledCluster, Protocol):
    """A cluster: observe, apply, and the state of workloads and projects.

    All methods are safe to cancel; acknowledged writes are durable. Methods that name a workload or
    project raise NotFound if it is unknown. None of them authorises: the API does. A `uid` limits a
    call to one workload: in the same step, another one of that name raises Conflict.
    """

    async def run(self) -> None:
        """Run the background tasks (watching processes, retries) until cancelled; call once.

        On start it first adopts running processes. Its own cancellation never stops a job.
        """

    # -- workloads -------------------------------------------------------------------------------

    async def submit(self, specs: Sequence[WorkloadSpec]) -> Sequence[WorkloadRecord]:
        """Store new workloads, all or none (an array is one of them).

        If their user has used their key before, nothing is stored, and the workloads of that
        submission are returned.

        Raises:
            Conflict: an existing workload in the project has one of the names, finished or not
                (`hint` says how to delete it); nothing is stored then.
        """

    async def submitted(self, user: str, key: str) -> Sequence[WorkloadRecord]:
        """Return the workloads that a user submitted under a non-empty key."""

    async def unfinished_jobs(self, user: str) -> int:
        """Return the number of a user's unfinished jobs, suspended ones included."""

    async def names(self) -> Container[WorkloadId]:
        """Return the existing workload ids: a view, valid until the next await."""

    async def workloads(self) -> Sequence[WorkloadRecord]:
        """Return all workloads, finished ones included, oldest first."""

    async def changes(self, since: int | None) -> WorkloadChanges:
        """Return the changes of `workloads` since a version; the cost depends on their number.

        All workloads are returned if `since` is None, a version to come (the service was restarted)
        or too long ago.
        """

    async def workload(self, workload: WorkloadId) -> WorkloadRecord:
        """Return one workload."""

    async def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return a workload's events, oldest first."""

    async def suspend(self, workload: WorkloadId, *, by: str, uid: str = "") -> WorkloadRecord:
        """Remove a job from the queue, and stop it if it runs; repeats do nothing.

        Raises:
            Conflict: it is finished, or a session (delete it instead).
        """

    async def resume(self, workload: WorkloadId, *, by: str, uid: str = "") -> WorkloadRecord:
        """Requeue a suspended job in its old place; a repeat changes nothing."""

    async def scale(
        self,
        workload: WorkloadId,
        *,
        workers: int | None,
        min_workers: int | None,
        by: str,
        uid: str = "",
    ) -> WorkloadRecord:
        """Set the maximum and minimum of workers of an elastic job; None: unchanged.

        The job keeps running; surplus workers leave like workers that the scheduler stops. A repeat
        changes nothing.

        Raises:
            Conflict: it is finished, a session, or no elastic job of several workers.
            InvalidRequest: the numbers contradict each other.
        """

    async def delete(self, workload: WorkloadId, *, by: str, uid: str = "") -> None:
        """Stop a workload that holds anything, and delete it when its processes are gone.

        A repeat changes nothing.
        """

    async def attach(
        self, workload: WorkloadId, process: Process, *, uid: str = ""
    ) -> WorkloadRecord:
        """Attach the process of a session that a spawner started; it runs from now on.

        The allocation is released when that process ends, for any reason.

        Raises:
            Conflict: the session holds no allocation (it was released meanwhile).
        """

    async def release(self, workload: WorkloadId, *, why: str, uid: str = "") -> WorkloadRecord:
        """Release a running session's GPUs; it goes on without them. A repeat does nothing.

        Raises:
            Conflict: it is a job, or does not run.
        """

    async def regain(self, workload: WorkloadId, *, by: str, uid: str = "") -> WorkloadRecord:
        """Queue a released session for its GPUs; it keeps running meanwhile.

        Raises:
            Conflict: it was not released.
        """

    async def wait(self, workload: WorkloadId, seen: WorkloadRecord) -> WorkloadRecord:
        """Return the workload as soon as it differs from `seen`; spawners wait with it."""

    async def environment(
        self, workload: WorkloadId, worker: int = 0, *, uid: str = ""
    ) -> WorkerEnvironment:
        """Return the environment that gives a worker its devices; spawners start sessions with it.

        Raises:
            Conflict: the worker holds no allocation.
        """

    def logs(
        self,
        workload: WorkloadId,
        *,
        worker: int | None,
        tail: int | None,
        follow: bool,
        parts: bool = False,
        uid: str = "",
    ) -> AsyncIterator[LogChunk]:
        """Yield the workers' output of all attempts; `follow` continues until it is finished.

        With `parts` it also yields parts of a line that has not ended yet.
        `tail` starts with the last lines of each worker. Pauses do not end a followed log. Nothing
        comes from a later workload of that name, also without a `uid`.
        """

    def unsaved_pauses(self) -> Mapping[str, int]:
        """Return the pauses since the service's start that left no new checkpoint, by project.

        They are counted where the cluster can look into the checkpoint directories.
        """

    async def progress(
        self, only: Collection[WorkloadId] | None = None
    ) -> Mapping[WorkloadId, Progress]:
        """Return the last progress that jobs reported; jobs without a report are left out.

        `only` limits the reading to some workloads; None: all.
        """

    # -- nodes and projects ----------------------------------------------------------------------

    async def holders(self) -> Mapping[WorkloadId, WorkloadRecord]:
        """Return the workloads that hold devices or have released them: of thousands, few.

        The same object until one of them changes.
        """

    async def devices(self) -> Mapping[str, Sequence[Device]]:
        """Return the devices of each node; the same object until one of them changes."""

    async def note_faults(self, node: str, faults: Mapping[str, str]) -> None:
        """Set the faults of devices by UUID; "" clears one.

        Nothing new is placed on a broken device; its holders keep running and get a history event.
        All further devices stay as they are; a repeat changes nothing.
        """

    async def note_holders(self, node: str, report: NodeReport) -> None:
        """Store a node agent's view of devices and their pods.

        A cluster that assigns devices itself ignores it.
        """

    async def allocations(self, node: str) -> Sequence[Allocation]:
        """Return the workers that run or stop on a node, for its agent."""

    async def note(self, workload: WorkloadId, text: str) -> None:
        """Append a warning to a workload's history."""

    async def projects(self) -> Sequence[ProjectRecord]:
        """Return all projects, oldest first."""

    async def put_project(self, spec: ProjectSpec) -> ProjectRecord:
        """Create or change a project; the next cycle uses it.

        Raises:
            InvalidRequest: the parent is unknown or the tree would have a cycle.
        """

    async def change_project(self, name: str, change: ProjectChange) -> ProjectRecord:
        """Apply `change` to the current project, atomically (compare and swap).

        `change` may refuse by raising; it is called again after a concurrent change.

        Raises:
            Conflict: concurrent changes do not end.
            InvalidRequest: the parent is unknown or the tree would have a cycle.
        """

    async def delete_project(self, name: str) -> None:
        """Delete a project; a later project of that name has none of its workloads.

        Raises:
            Conflict: it has children, unfinished workloads, or finished ones that the platform may
                not delete.
        """


MAX_LINE_BYTES = 2**20
"""Longer lines are split, so that memory is bounded."""


class LineCutter:
    r"""Cutter of one worker's output into whole lines, and parts of a line that has not ended.

    >>> cutter = LineCutter()
    >>> cutter.feed(b"one\ntwo\nthr"), cutter.part(), cutter.feed(b"ee\nfo"), cutter.rest()
    (b'one\ntwo\n', b'thr', b'ee\n', b'fo\n')
    """

    def __init__(self) -> None:
        """Begin with a line."""
        self.unread = b""
        """Beginning of the unfinished line, without its parts so far."""
        self._parts_bytes = 0

    def feed(self, block: bytes) -> bytes:
        """Return the lines that a block ends; the first one continues the parts so far."""
        unended = self.unread + block
        end = unended.rfind(b"\n") + 1
        lines, rest = unended[:end], unended[end:]
        length = 0 if end else self._parts_bytes
        while length + len(rest) >= MAX_LINE_BYTES:  # cut the unfinished line
            room = MAX_LINE_BYTES - length
            lines, rest, length = lines + rest[:room] + b"\n", rest[room:], 0
        self.unread, self._parts_bytes = rest, length
        return lines

    def part(self) -> bytes:
        """Return the unread part of the unfinished line, without half a letter at its end."""
        end = len(self.unread)
        for at in range(end - 1, max(-1, end - 4), -1):
            if self.unread[at] < 0x80:
                break
            if self.unread[at] >= 0xC0:  # a letter of 2, 3 or 4 bytes begins
                letter = 2 + (self.unread[at] >= 0xE0) + (self.unread[at] >= 0xF0)
                end = at if end - at < letter else end
                break
        part, self.unread = self.unread[:end], self.unread[end:]
        self._parts_bytes += len(part)
        return part

    def rest(self) -> bytes:
        """Return the end of the unfinished line, once no more can come; b"": there is none."""
        rest = self.unread + b"\n" if self.unread or self._parts_bytes else b""
        self.drop()
        return rest

    def drop(self) -> None:
        """Begin with a new line."""
        self.unread, self._parts_bytes = b"", 0
