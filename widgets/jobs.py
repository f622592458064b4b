"""Jobs as Python objects: submit, inspect, await, suspend, delete.

    job = submit("train.py", gpus=0.5, name="exp1")
    job.wait()            # or: await job

A Job stores its name alone: each property is a request to the service.
"""

import inspect
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from os import PathLike
from shutil import get_terminal_size
from typing import Any, Self, TypedDict, Unpack, overload

from runai.hub_service.client.log_lines import LogPrinter
from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.schemas import FINISHED, ScaleRequest, WorkloadDetail
from runai.hub_service.wire.workload_request import SubmitRequest, help_texts, request_fields
from runai.widgets import text
from runai.widgets.link import Link, link
from runai.widgets.log_output import NotebookLog, bounded
from runai.widgets.panel import in_a_notebook, jobs_view
from runai.widgets.request import (
    Amount,
    Program,
    Word,
    keyword_request,
    program_command,
)

LONG_POLL_S = 20.0
MAX_LISTED_JOBS = 20
"""Jobs of an array that are shown one by one; of more, the array is one line."""


class Job:
    """One submitted workload; a notebook displays it as a live view.

    A later workload of the same name is another one: every call about it raises Conflict.
    """

    def __init__(
        self, workload: str, *, notes: Sequence[str] = (), using: Link | None = None, uid: str = ""
    ) -> None:
        """Refer to the job `project/name`; no request is made yet.

        Without a `uid` it is the one that the service's first answer is about.
        """
        self.id = workload
        self.uid = uid
        self.project, _, self.name = workload.partition("/")
        self.notes = tuple(notes)
        self.link = using or link()

    @classmethod
    def find(cls, name: str) -> Self:
        """Return the job that `name` or `project/name` means.

        Raises:
            NotFound: there is none that the caller may see.
            InvalidRequest: several projects have one.
        """
        found = link().find_all([name])[0]
        return cls(found.id, uid=found.uid)

    def __reduce__(self) -> tuple[Any, ...]:
        # For another process, which finds the platform itself: a token stays in its own.
        return partial(type(self), self.id, notes=self.notes, uid=self.uid), ()

    @property
    def detail(self) -> WorkloadDetail:
        """The service's current view of the job, as typed fields."""
        return self._remember_identity(self.link.client.workload(self))

    def _remember_identity(self, detail: WorkloadDetail) -> WorkloadDetail:
        """Take the identity of the first answer."""
        self.uid = self.uid or detail.uid
        return detail

    @property
    def state(self) -> str:
        """The current state: queued, starting, running, paused, suspended, succeeded, failed, …."""
        return self.detail.state

    @property
    def finished(self) -> bool:
        """True once the job has ended for good."""
        return self.state in FINISHED

    def describe(self) -> text.Text:
        """Return a full description: request, devices, attempts, history."""
        detail = self.detail
        why = self.link.client.explanation(detail) if detail.is_in_queue else None
        return text.describe(detail, why)

    def wait(self) -> Self:
        """Block until the job is finished, through pauses; an interrupt leaves it running."""
        version = ""
        while (detail := self.link.client.wait(self, version, LONG_POLL_S)).state not in FINISHED:
            version = self._remember_identity(detail).version
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._finish().__await__()

    async def _finish(self) -> Self:
        """Await the end, as `wait` waits for it."""
        async with self.link.awaitable_client() as client:
            version = ""
            while (detail := await client.wait(self, version, LONG_POLL_S)).state not in FINISHED:
                version = self._remember_identity(detail).version
        return self

    def lines(
        self, *, follow: bool = False, tail: int | None = None, worker: int | None = None
    ) -> Iterator[str]:
        """Yield the log lines; `follow` continues until the job is finished."""
        is_mixed = self._mixes_workers(worker)
        for line in self.link.client.logs(self, worker=worker, tail=tail, follow=follow):
            yield f"[{line.worker}] {line.text}" if is_mixed else line.text

    def _mixes_workers(self, worker: int | None) -> bool:
        """Return True if lines of several workers follow one another."""
        return worker is None and len(self.detail.workers) > 1

    def logs(
        self, *, follow: bool = False, tail: int | None = None, worker: int | None = None
    ) -> None:
        """Print the log; `follow` continues until the job is finished or interrupted.

        A notebook shows 2,000 lines at most, and says how many it leaves out; `lines` yields all.
        """
        if in_a_notebook() and not follow:
            for line in bounded(self.lines(tail=tail, worker=worker)):
                print(line)  # noqa: T201 - the purpose of this method
            return
        several = self._mixes_workers(worker)
        printer = LogPrinter(
            partial(print, end="", flush=follow),
            several=several,
            terminal=get_terminal_size if sys.stdout.isatty() else None,
        )
        parts = follow and (in_a_notebook() or printer.parts)
        lines = self.link.client.logs(self, worker=worker, tail=tail, follow=follow, parts=parts)
        try:
            if in_a_notebook():
                NotebookLog(lines, several=several).show()
                return
            with closing(printer):
                for log_line in lines:
                    printer.print(log_line)
        except KeyboardInterrupt:
            if not follow:
                raise

    def suspend(self) -> Self:
        """Suspend the job until `resume`: its devices are freed, its checkpoints stay."""
        self._remember_identity(self.link.client.suspend(self))
        return self

    def resume(self) -> Self:
        """Resume the job at its old place in the queue."""
        self._remember_identity(self.link.client.resume(self))
        return self

    def scale(self, *, workers: int | None = None, min_workers: int | None = None) -> Self:
        """Set an elastic job's most and fewest workers; None: unchanged."""
        request = ScaleRequest(workers=workers, min_workers=min_workers)
        self._remember_identity(self.link.client.scale(self, request))
        return self

    def delete(self) -> None:
        """Stop the job if it runs, and delete it."""
        self.link.client.delete(self)

    def __repr__(self) -> str:
        try:
            line = str(text.workload_line(self.detail))
        except RunaiError as error:  # deleted, or the service is away
            line = f"{self.id}: {error.message}"
        return "\n".join([line, *self.notes])

    def _repr_mimebundle_(self, **_kwargs: object) -> tuple[dict[str, Any], dict[str, Any]]:
        return _mimebundle(self)


class Jobs(tuple[Job, ...]):  # noqa: SLOT001  it has the array beside its jobs
    """Several jobs, such as an array's: one live view, one `wait`."""

    whole: Job | None = None
    """The array of which these are all jobs."""

    @classmethod
    def of(cls, array: Job, ids: Iterable[str]) -> Self:
        """Return the jobs of an array, by their ids."""
        jobs = cls(Job(name, notes=array.notes, using=array.link, uid=array.uid) for name in ids)
        jobs.whole = array
        return jobs

    def wait(self) -> Self:
        """Block until all are finished; an interrupt leaves them running."""
        for job in self.requested():
            job.wait()
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._finish().__await__()

    async def _finish(self) -> Self:
        """Await the end, as `wait` waits for it."""
        for job in self.requested():
            await job
        return self

    def suspend(self) -> Self:
        """Suspend all of them until `resume`."""
        for job in self.requested():
            job.suspend()
        return self

    def resume(self) -> Self:
        """Resume all of them."""
        for job in self.requested():
            job.resume()
        return self

    def delete(self) -> None:
        """Stop and delete all of them."""
        for job in self.requested():
            job.delete()

    def requested(self) -> tuple[Job, ...]:
        """Return the jobs to call the service for: an array is one call."""
        return tuple(self) if self.whole is None else (self.whole,)

    def __repr__(self) -> str:
        jobs = self.requested() if len(self) > MAX_LISTED_JOBS else self
        return "\n".join(repr(job) for job in jobs)

    def _repr_mimebundle_(self, **_kwargs: object) -> tuple[dict[str, Any], dict[str, Any]]:
        return _mimebundle(self)


def _mimebundle(jobs: Job | Jobs) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a live view in a notebook, else text."""
    listed = (jobs,) if isinstance(jobs, Job) else tuple(jobs)
    if isinstance(jobs, Jobs) and len(jobs) > MAX_LISTED_JOBS:
        listed = jobs.requested()
    if not listed or not in_a_notebook():
        return {"text/plain": repr(jobs)}, {}
    first = listed[0]
    return jobs_view(first.link, listed, notes=first.notes).mimebundle()


class Options(TypedDict, total=False):
    """The options of `submit` beside `array`, for type checkers."""

    args: Word | Iterable[Word] | None
    gpus: Amount | None
    gpu_memory: str | None
    gpu_type: str | None
    cpu: Amount | None
    memory: str | None
    name: str | None
    project: str | None
    priority: str | int | None
    workers: int
    elastic: bool
    min_workers: int | None
    guaranteed_workers: int | None
    saves: bool
    no_environment: bool
    env: Mapping[str, Word] | Iterable[str] | None
    workdir: str | PathLike[str] | None
    interactive: bool
    preemptible: bool | None
    backoff_limit: int
    grace_seconds: int | str
    expected_runtime: int | str | None
    max_runtime: int | str | None
    image: str | None
    wait: bool


@overload
def submit(program: Program, *, array: None = None, **options: Unpack[Options]) -> Job: ...
@overload
def submit(program: Program, *, array: int, **options: Unpack[Options]) -> Jobs: ...
def submit(
    program: Program,
    *,
    args: Word | Iterable[Word] | None = (),
    wait: bool = False,
    env: Mapping[str, Word] | Iterable[str] | None = None,
    workdir: str | PathLike[str] | None = None,
    **options: Any,
) -> Job | Jobs:
    """Submit a script, a notebook, a command line or a list of words; return at once.

    Text in `args` is split as in a shell. An `array` is returned as Jobs. `wait`: until the end.

    Without `gpus` and `gpu_memory` the job gets no GPU. The options equal `runai submit`'s.

    Raises:
        InvalidRequest: a value is not valid, the script is missing, the project is unknown.
        Forbidden: the caller may not submit there.
        Conflict: the name is taken.
    """
    command = program_command(program, args)
    jobs = send(keyword_request(command, env=env, workdir=workdir, **options))
    return jobs.wait() if wait else jobs


def _show_keywords(function: Callable[..., object]) -> None:
    """Give a function the signature that Tab completes, and a line of help for each keyword."""
    signature = inspect.signature(function)
    # Without types, which take more lines than all names: `Options` has them for type checkers.
    named = [
        p.replace(annotation=p.empty)
        for p in signature.parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
    known = {parameter.name for parameter in named}
    fields = request_fields()
    options = [
        inspect.Parameter(
            field.keyword,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if field.option.flag_value else field.default,
        )
        for field in fields
        if field.keyword not in known
    ]
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[named[0], *options, *named[1:]]
    )
    hints = help_texts(lambda field: field.keyword)
    lines = [f"    {field.keyword}: {hints[field.name]}" for field in fields]
    function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Options:", *lines])


_show_keywords(submit)


def send(request: SubmitRequest, *, using: Link | None = None) -> Job | Jobs:
    """Submit a request that is already checked."""
    using = using or link()
    reply = using.client.submit(request)
    first = reply.workloads[0]
    if not reply.array:
        return Job(first.id, notes=reply.notes, using=using, uid=first.uid)
    array = Job(reply.array, notes=reply.notes, using=using, uid=first.uid)
    return Jobs.of(array, reply.ids())


def dry_run(request: SubmitRequest, *, using: Link | None = None) -> text.Text:
    """Return the result of a dry run as text; nothing is stored."""
    reply = (using or link()).client.submit(request, dry_run=True)
    lines = [text.workload_line(view) for view in reply.workloads]
    return text.Text("\n".join([*lines, *reply.notes, "Nothing was submitted (dry run)."]))
