"""Rows of `runai list --watch`: which rows an event has, and how each kind is printed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import click

from runai.hub_service.cli.output import render, tables
from runai.hub_service.cli.output.printed_rows import WatchedList, watch
from runai.hub_service.client import Client
from runai.hub_service.client.array_lines import folded
from runai.hub_service.client.calls import WorkloadFilter
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.errors import NotFound
from runai.hub_service.wire.printable import for_terminal
from runai.hub_service.wire.schemas import Overview, ProjectView, WorkloadView

T = TypeVar("T")


def watch_workloads(
    client: Client, workload_filter: WorkloadFilter, output: str, *, elements: bool
) -> None:
    """Print workloads, then the changed ones; arrays are one line, unless `elements`."""

    def folded_lines(workloads: Iterable[WorkloadView]) -> Iterable[WorkloadView]:
        return workloads if elements or output not in render.TABLES else folded(workloads)

    def rows_of_event(overview: Overview) -> Iterable[WorkloadView]:
        return folded_lines(
            w
            for w in overview.workloads
            if workload_filter.project in {None, w.project}
            and workload_filter.user in {None, w.user}
            and workload_filter.kind in {None, w.kind}
            and (w.manageable or not workload_filter.manageable)
        )

    def is_deleted(workload: str) -> bool:
        try:
            client.workload(workload)
        except NotFound:
            return True
        return False

    workloads = _watched_list(
        lambda: tables.workload_table(datetime.now(UTC)),
        rows_of_event,
        lambda w: w.id,
        output,
        is_listed=lambda w: workload_filter.state in {None, w.state},
        is_deleted=is_deleted,
    )
    watch(client, workloads, folded_lines(client.workloads(replace(workload_filter, state=None))))


def watch_projects(client: Client, output: str) -> None:
    """Print projects as they change."""
    table = partial(tables.project_table, simulated=tables.any_simulated(client.nodes()))
    projects: WatchedList[ProjectView] = _watched_list(
        table, lambda o: o.projects, lambda p: p.name, output
    )
    watch(client, projects)


def watch_nodes(client: Client, output: str) -> None:
    """Watch devices in a table, as `list` shows them, else whole nodes."""
    if output in render.TABLES:
        devices = _watched_list(
            tables.node_table,
            lambda overview: tables.devices_of(overview.nodes),
            lambda at: f"{at.node} {at.device.device}",
            output,
        )
        watch(client, devices)
        return
    nodes: WatchedList[NodeView] = _watched_list(
        tables.node_table, lambda overview: overview.nodes, lambda node: node.name, output
    )

    def compared(node: NodeView) -> tuple[Any, ...]:
        table = tables.node_table()
        devices = (table.compared(at, wide=True) for at in tables.devices_of([node]))
        return node.cpus_allocated, node.memory_allocated_mib, *devices

    watch(client, replace(nodes, compared=compared))


def _watched_list(
    table: Callable[[], tables.Table[Any]],
    rows_of_event: Callable[[Overview], Iterable[T]],
    name: Callable[[T], str],
    output: str,
    **conditions: Any,
) -> WatchedList[T]:
    """Return what is watched; it prints later rows below the first ones."""
    wide = output != "table"
    layout: render.Layout | None = None

    def show(rows: Sequence[Any]) -> None:
        nonlocal layout
        if output in render.TABLES:
            layout = table().show(rows, wide=wide, below=layout)
        elif output == "name":
            render.show_rows(rows, name, output)
        else:
            for row in rows:
                if output == "yaml":
                    click.echo("---")  # one document for each change
                render.show_data(row, output)

    def show_deleted(deleted: str) -> None:
        if output in render.TABLES:
            click.echo(f"{for_terminal(deleted)} deleted")
        elif output in render.DATA:
            render.show_data({"deleted": deleted}, output)

    def compared(row: T) -> tuple[Any, ...]:
        return table().compared(row, wide=wide)

    return WatchedList(rows_of_event, name, compared, show, show_deleted, **conditions)
