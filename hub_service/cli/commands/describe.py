"""`runai describe`: all details of one workload, project or node.

The output is a block of `Key:  value` lines, and a titled table for each list.
"""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime

import click
from rich.text import Text

from runai.hub_service.cli.commands.listing import show_beside_gpus
from runai.hub_service.cli.framework.error_reporting import Command, output_option
from runai.hub_service.cli.framework.workload_names import WORKLOAD_NAME, find, in_project
from runai.hub_service.cli.output import render, tables
from runai.hub_service.client import Client
from runai.hub_service.client.array_lines import counts_text
from runai.hub_service.limits.tiers import COMPUTE_IS_SHARED
from runai.hub_service.scheduler.model.quantity import duration_text
from runai.hub_service.wire.amounts import clock_text
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.errors import NotFound
from runai.hub_service.wire.explanation_schemas import ExplanationView
from runai.hub_service.wire.printable import for_terminal
from runai.hub_service.wire.program_schemas import code_text
from runai.hub_service.wire.schemas import SAVES, ProjectView, WorkloadDetail

_WORKLOAD_WORDS = ("job", "jobs", "session", "sessions", "workload", "workloads")
_PROJECT_WORDS = ("project", "projects")
_NODE_WORDS = ("node", "nodes")
_WORDS = (*_WORKLOAD_WORDS, *_PROJECT_WORDS, *_NODE_WORDS)

DetailLines = list[tuple[str, str]]


def _usage_lines(w: WorkloadDetail) -> DetailLines:
    """Return the lines of one workload's GPUs; a whole array has its jobs' instead."""
    busy = render.share(w.utilized, w.allocated, simulated=w.simulated)
    average = render.share(w.utilized_average, w.gpus, simulated=w.simulated)
    return [
        ("Allocated", f"{render.gpus(w.allocated)} on {render.devices(w)}" if w.allocated else "0"),
        ("Utilized", f"{busy} now, {average} on average while allocated"),
        ("Memory used", render.memory(w.memory_used_mib)),
    ]


def workload_lines(w: WorkloadDetail, now: datetime) -> DetailLines:
    """Return the key and value lines of a workload, without unset options."""
    why = render.reason(w.reason)
    resizes = f", {w.elastic.resizes} resized" if w.elastic and w.elastic.resizes else ""
    attempts = f"{w.attempts} ({w.pauses} paused{resizes}, {w.failures} failed)"
    minimum = f" (of {w.min_workers} workers or more)" if w.min_workers < len(w.workers) else ""
    lines = [
        ("Name", w.name),
        ("Project", w.project),
        ("User", w.user),
        ("Kind", f"{w.kind}, {'preemptible' if w.preemptible else 'never preempted'}"),
        ("State", w.state.replace("_", " ")),
        ("Jobs", counts_text(w.states)),
        ("Reason", why),
        ("Moved", w.moved.removeprefix("moved ")),
        ("Warning", w.killed),
        ("Warning", w.unsaved),
        ("Account", w.account),
        ("GPUs asked", render.total_request(w) + minimum),
        ("Elastic", w.elastic.text if w.elastic else ""),
        (
            "Guaranteed",
            f"{w.guaranteed_workers} of its workers: no other project takes them"
            if w.guaranteed_workers
            else "",
        ),
        ("When paused", SAVES if w.saves else ""),
        ("Speed", w.elastic.speed if w.elastic else ""),
        ("Progress", w.progress.text if w.progress else ""),
        ("Reported", w.reported.text if w.reported else ""),
        ("CPUs", render.gpus(w.cpu) if w.cpu else ""),
        ("Memory", render.memory(w.memory_mib) if w.memory_mib else ""),
        ("GPU memory", "" if w.gpu_memory_mib is None else render.memory(w.gpu_memory_mib)),
        *([] if w.states else _usage_lines(w)),
        ("Memory limit", _limit_text(w)),
        ("Sharing", COMPUTE_IS_SHARED if w.limit else ""),
        ("Notice", w.notice),
        ("Priority", str(w.priority)),
        ("Submitted", f"{render.clock(w.submitted)} ({render.age(w.submitted, now)} ago)"),
        ("Started", render.clock(w.started) if w.started else ""),
        ("Finished", render.clock(w.finished) if w.finished else ""),
        ("Exit code", "" if w.exit_code is None else str(w.exit_code)),
        ("Attempts", "" if w.states else attempts),
        ("Retries", f"up to {w.backoff_limit}" if w.backoff_limit else ""),
        ("Grace period", f"{w.grace_seconds} s"),
        ("Expected runtime", duration_text(w.expected_runtime) if w.expected_runtime else ""),
        ("Time limit", _time_limit_text(w, now)),
        ("Array index", "" if w.array_index is None else f"{w.array_index} of {w.array}"),
        ("Command", shlex.join(w.command) if w.command else ""),
        ("Code", code_text(w.code, w.code_started)),
        ("Image", w.image),
        ("GPU type", w.gpu_type_text()),
        ("Directory", w.workdir),
        ("Umask", w.umask),
        ("Checkpoints", w.checkpoint_dir),
        ("Logs", w.log_dir),
    ]
    return [(key, value) for key, value in lines if value]


def _time_limit_text(w: WorkloadDetail, now: datetime) -> str:
    if w.max_runtime is None:
        return ""
    since = 0.0 if w.runs_since is None else max(0.0, (now - w.runs_since).total_seconds())
    text = f"{clock_text(w.max_runtime)} of running, {duration_text(round(w.ran_s + since))} used"
    return text if w.ends_at is None else f"{text}; ends it at {render.clock(w.ends_at)}"


def _limit_text(w: WorkloadDetail) -> str:
    if w.limit is None:
        return ""
    return f"{render.memory(w.limit.memory_mib)}, {w.limit.badge}: {w.limit.why}"


@click.command(cls=Command)
@click.argument(
    "words", nargs=-1, required=True, metavar="[job|project|node] NAME", type=WORKLOAD_NAME
)
@in_project
@output_option("table", "json")
def describe(words: tuple[str, ...], project: str | None, output: str) -> None:
    """Show everything about a workload, project or node.

    \b
    runai describe exp1                as `runai describe job exp1`
    runai describe node gpu-node-1
    runai describe project vision -o yaml
    """  # noqa: D301 - \b is click's mark of a block
    kind, name = _kind_and_name(words)
    with Client.discover() as client:
        if kind in _PROJECT_WORDS:
            _show_project(client.project(name), output)
        elif kind in _NODE_WORDS:
            _show_node(client.nodes(), name, output)
        else:
            workload = client.workload(find(client, name, project))
            waits = workload.reason is not None and workload.reason.position is not None
            _show_workload(workload, client.explanation(workload) if waits else None, output)


def _kind_and_name(words: tuple[str, ...]) -> tuple[str, str]:
    """Split the words into kind and name; one word alone names a workload."""
    if len(words) == 1:
        return "job", words[0]
    kind, *names = words
    if kind not in _WORDS or len(names) != 1:
        raise click.UsageError(
            "Say one name, as in `runai describe exp1` or `runai describe node NAME`."
        )
    return kind, names[0]


def explanation_lines(explanation: ExplanationView) -> DetailLines:
    """Return the lines that explain a workload's wait, without unknown parts."""
    holders = [
        f"{h.workload or f'a workload of {h.project}'} {render.gpus(h.gpus)}"
        + (f" until {'about ' if h.is_estimated else ''}{render.clock(h.until)}" if h.until else "")
        for h in explanation.holders
    ]
    start = explanation.expected_start
    lines = [("Start", start.text if start else "")]
    lines += [("Would help", counterfactual.text) for counterfactual in explanation.counterfactuals]
    lines += [("Ahead", ", ".join(explanation.ahead)), ("Held by", "; ".join(holders))]
    return [(key, value) for key, value in lines if value]


def _show_workload(
    workload: WorkloadDetail, explanation: ExplanationView | None, output: str
) -> None:
    """Print a workload's lines, workers, processes, history and source."""
    if output in render.DATA:
        whole = workload.model_dump(mode="json")
        render.show_data(
            {**whole, "explanation": explanation.model_dump(mode="json") if explanation else None},
            output,
        )
        return
    lines = workload_lines(workload, datetime.now(UTC))
    if explanation is not None and explanation.reason is not None:
        at = next((i for i, (key, _) in enumerate(lines) if key == "Reason"), len(lines) - 1)
        lines[at + 1 : at + 1] = explanation_lines(explanation)
    render.show_lines(lines)
    if workload.simulated and (workload.allocated or workload.utilized_average is not None):
        click.echo(render.SIMULATED_NOTE)
    if len(workload.workers) > 1:
        click.echo("\nWorkers:")
        rows: list[list[str | Text]] = [
            [str(w.index), render.state(w.state), w.node or "-", _exit_code_text(w.exit_code)]
            for w in workload.workers
        ]
        render.show_table(("WORKER", "STATE", "NODE", "EXIT CODE"), rows)
    if workload.processes:
        click.echo("\nProcesses:")
        found = [[str(p.pid), p.name, render.memory(p.memory_mib)] for p in workload.processes]
        render.show_table(("PID", "NAME", "MEMORY"), found)
    if workload.history:
        click.echo("\nHistory:")
        for event in workload.history:
            line = f"  {render.clock(event.at)}  {event.kind:<10} {event.text}"
            click.echo(for_terminal(line).rstrip())
    if workload.source:
        click.echo("\nSource:")
        for line in workload.source.splitlines():
            click.echo(f"  {for_terminal(line)}".rstrip())


def _exit_code_text(exit_code: int | None) -> str:
    return "-" if exit_code is None else str(exit_code)


def _show_project(project: ProjectView, output: str) -> None:
    if output in render.DATA:
        render.show_data(project, output)
        return
    columns = tables.project_table().columns
    lines = [(c.heading.capitalize(), str(c.cell(project))) for c in columns]
    render.show_lines([*lines, *(("Note", note) for note in project.notes)])


def _show_node(nodes: Sequence[NodeView], name: str, output: str) -> None:
    """Print the node of this name.

    Raises:
        NotFound: there is none.
    """
    node = next((n for n in nodes if n.name == name), None)
    if node is None:
        known = ", ".join(n.name for n in nodes) or "none"
        raise NotFound(f"There is no node '{name}'.", hint=f"Nodes: {known}.")
    if output in render.DATA:
        render.show_data(node, output)
        return
    tables.node_table().show(tables.devices_of([node]), wide=True)
    show_beside_gpus([node])
    if any(d.simulated for d in node.devices):
        click.echo(render.SIMULATED_NOTE)
