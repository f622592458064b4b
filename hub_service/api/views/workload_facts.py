"""The facts of a workload: what `describe`, the notebook and its page say about it, line by line.

Pure: a view holds only what its reader may see, and the facts only what the view holds.
"""

import shlex
from collections.abc import Iterator
from datetime import datetime
from urllib.parse import quote

from runai.hub_service.client import texts
from runai.hub_service.client.array_lines import counts_text
from runai.hub_service.limits.tiers import COMPUTE_IS_SHARED
from runai.hub_service.scheduler.model.quantity import duration_text
from runai.hub_service.wire.amounts import DURATION, GRACE, clock_text
from runai.hub_service.wire.program_schemas import code_text
from runai.hub_service.wire.schemas import SAVES, Fact, WorkloadDetail, WorkloadView
from runai.hub_service.wire.workload_request import request_fields


def workload_facts(view: WorkloadView, now: datetime) -> list[Fact]:
    """Return the facts of a workload, without those that are unset."""
    facts = [*_identity(view), *_request(view), *_usage(view), *_course(view, now)]
    if isinstance(view, WorkloadDetail):
        facts += _program(view)
    return [fact for fact in facts if fact.text or fact.at]


def _identity(view: WorkloadView) -> Iterator[Fact]:
    yield Fact(label="Name", text=view.name)
    yield Fact(label="Project", text=view.project, link=f"projects/{quote(view.project)}")
    yield Fact(label="User", text=view.user)
    preemption = "preemptible" if view.preemptible else "never preempted"
    yield Fact(label="Kind", text=f"{view.kind}, {preemption}")
    yield Fact(label="State", text=view.state.replace("_", " "))
    yield Fact(label="Jobs", text=counts_text(view.states))
    yield Fact(label="Reason", text=texts.reason(view.reason))
    yield Fact(label="Moved", text=view.moved.removeprefix("moved "))
    yield Fact(label="Warning", text=view.killed, level="warning")
    yield Fact(label="Warning", text=view.unsaved, level="warning")
    yield Fact(label="Idle", text="" if view.idle is None else view.idle.text, level="warning")
    yield Fact(label="Notice", text=view.notice, level="warning")
    if isinstance(view, WorkloadDetail):
        yield Fact(label="Account", text=view.account, level="warning")


def _request(view: WorkloadView) -> Iterator[Fact]:
    may_be_fewer = view.min_workers < len(view.workers)
    minimum = f" (of {view.min_workers} workers or more)" if may_be_fewer else ""
    yield Fact(label="GPUs asked", text=texts.total_request(view) + minimum)
    if view.gpu_memory_mib is not None:
        yield Fact(label="GPU memory", text=texts.memory(view.gpu_memory_mib))
    yield Fact(label="GPU type", text=view.gpu_type_text())
    yield Fact(label="CPUs", text=texts.gpus(view.cpu) if view.cpu else "")
    yield Fact(label="Memory", text=texts.memory(view.memory_mib) if view.memory_mib else "")
    yield Fact(label="Priority", text=str(view.priority))
    yield Fact(label="When paused", text=SAVES if view.saves else "")
    if view.array_index is not None:
        text = f"{view.array_index} of {view.array}"
        array = view.id.rpartition("-")[0]
        yield Fact(label="Array index", text=text, link=f"workloads/{quote(array)}")


def _usage(view: WorkloadView) -> Iterator[Fact]:
    """Yield the facts of its GPUs; a whole array has its jobs' instead."""
    if not view.states:
        devices = f"{texts.gpus(view.allocated)} on {texts.devices(view)}"
        yield Fact(label="Allocated", text=devices if view.allocated else "0")
        busy = texts.share(view.measured.utilized, view.allocated)
        average = texts.share(view.measured.utilized_average, view.gpus)
        simulated = " (simulated)" if view.simulated else ""
        text = f"{busy} now, {average} on average while allocated{simulated}"
        is_measured = view.allocated or view.measured.utilized_average is not None
        yield Fact(label="Utilized", text=text if is_measured else "")
        used = view.measured.memory_used_mib
        yield Fact(label="Memory used", text="" if used is None else texts.memory(used))
    if view.limit is not None:
        limit = f"{texts.memory(view.limit.memory_mib)}, {view.limit.badge}: {view.limit.why}"
        yield Fact(label="Memory limit", text=limit)
        yield Fact(label="Sharing", text=COMPUTE_IS_SHARED)
    gpu_hours = view.measured.gpu_hours
    hours = f"{gpu_hours:.3g}" if gpu_hours >= 0.001 else "< 0.001"
    yield Fact(label="GPU-hours", text=hours if gpu_hours else "")
    yield Fact(label="Elastic", text=view.elastic.text if view.elastic else "")
    yield Fact(label="Speed", text=view.elastic.speed if view.elastic else "")
    yield Fact(label="Progress", text=view.progress.text if view.progress else "")
    if isinstance(view, WorkloadDetail):
        yield Fact(label="Reported", text=view.reported.text if view.reported else "")


def _course(view: WorkloadView, now: datetime) -> Iterator[Fact]:
    yield Fact(label="Submitted", text="", at=view.submitted)
    yield Fact(label="Started", text="", at=view.started)
    yield Fact(label="Finished", text="", at=view.finished)
    yield Fact(label="Exit code", text="" if view.exit_code is None else str(view.exit_code))
    if not view.states:
        resizes = view.elastic.resizes if view.elastic else 0
        resized = f", {resizes} resized" if resizes else ""
        attempts = f"{view.attempts} ({view.pauses} paused{resized}, {view.failures} failed)"
        yield Fact(label="Attempts", text=attempts)
    if view.max_runtime is not None and (time := view.run_time) is not None:
        current = 0.0 if time.runs_since is None else (now - time.runs_since).total_seconds()
        used = duration_text(round(time.ran_s + max(0.0, current)))
        yield Fact(
            label="Time limit", text=f"{clock_text(view.max_runtime)} of running, {used} used"
        )
        yield Fact(label="Ends", text="", at=time.ends_at)


def _program(view: WorkloadDetail) -> Iterator[Fact]:
    for field in request_fields():
        value, is_duration = view.options.get(field.name, ""), field.kind in {DURATION, GRACE}
        if value or (is_duration and value != ""):
            text = clock_text(int(value)) if is_duration else str(value)
            yield Fact(label=field.label, text="yes" if value is True else text)
    yield Fact(label="Command", text=shlex.join(view.command) if view.command else "")
    yield Fact(label="Variables", text=", ".join(view.env_names))
    yield Fact(label="Python", text=view.python)
    yield Fact(label="Code", text=code_text(view.code, view.code_started))
    yield Fact(label="Directory", text=view.workdir)
    yield Fact(label="Umask", text=view.umask)
    yield Fact(label="Checkpoints", text=view.checkpoint_dir)
    yield Fact(label="Logs", text=view.log_dir)
