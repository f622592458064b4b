"""`runai describe`: all details of one workload, project or node.

The output is a block of `Key:  value` lines, and a titled table for each list.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import click
from rich.text import Text

from runai.hub_service.cli.commands.listing import show_beside_gpus
from runai.hub_service.cli.framework.error_reporting import Command, output_option
from runai.hub_service.cli.framework.workload_names import WORKLOAD_NAME, find, in_project
from runai.hub_service.cli.output import render, tables
from runai.hub_service.client import Client, texts
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.errors import NotFound
from runai.hub_service.wire.explanation_schemas import ExplanationView
from runai.hub_service.wire.printable import for_terminal
from runai.hub_service.wire.schemas import ProjectView, WorkloadDetail

_WORKLOAD_WORDS = ("job", "jobs", "session", "sessions", "workload", "workloads")
_PROJECT_WORDS = ("project", "projects")
_NODE_WORDS = ("node", "nodes")
_WORDS = (*_WORKLOAD_WORDS, *_PROJECT_WORDS, *_NODE_WORDS)


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
            _show_workload(
                workload, client.explanation(workload) if workload.is_in_queue else None, output
            )


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
    render.show_lines(texts.described(workload, explanation, datetime.now(UTC)))
    if len(workload.workers) > 1:
        click.echo("\nWorkers:")
        rows: list[list[str | Text]] = [
            [str(w.index), render.state(w.state), w.node or "-", _exit_code_text(w.exit_code)]
            for w in workload.workers
        ]
        render.show_table(("WORKER", "STATE", "NODE", "EXIT CODE"), rows)
    if workload.processes:
        click.echo("\nProcesses:")
        found = [[str(p.pid), p.name, texts.memory(p.memory_mib)] for p in workload.processes]
        render.show_table(("PID", "NAME", "MEMORY"), found)
    if workload.history:
        click.echo("\nHistory:")
        for event in workload.history:
            line = f"  {texts.clock(event.at)}  {event.kind:<10} {event.text}"
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
        click.echo(texts.SIMULATED_NOTE)
