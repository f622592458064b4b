"""Lookup of workloads by NAME (`exp1` or `project/exp1`), and shell completion of names.

One request lists the workloads that the caller may see.
"""

from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem

from runai.hub_service.client import Client
from runai.hub_service.client.array_lines import named
from runai.hub_service.client.calls import WorkloadFilter
from runai.hub_service.wire.errors import InvalidRequest, NotFound, RunaiError
from runai.hub_service.wire.schemas import WorkloadView

_KIND_WORDS: Final = frozenset({"job", "jobs", "session", "sessions", "workload", "workloads"})


def find_all(
    client: Client, names: Sequence[str], project: str | None = None
) -> list[WorkloadView]:
    """Return the workloads with these names in their order, without duplicates.

    `project` restricts the search. `job exp1` means `exp1`, as in kubectl.

    Raises:
        NotFound: the caller may see no workload with a name.
        InvalidRequest: a name is in several projects.
    """
    if len(names) > 1 and names[0] in _KIND_WORDS:
        names = names[1:]
    # An array's job `sweep-3` is found by its array's name.
    search_text = names[0].rpartition("-")[0] or names[0] if len(names) == 1 else None
    visible = client.workloads(WorkloadFilter(project, text=search_text))
    chosen = {w.id: w for name in names for w in [_choose(client, visible, name)]}
    return list(chosen.values())


def find(client: Client, name: str, project: str | None = None) -> WorkloadView:
    """Return the workload with this name; errors are the ones of `find_all`."""
    return find_all(client, [name], project)[0]


def _choose(client: Client, visible: Sequence[WorkloadView], name: str) -> WorkloadView:
    """Return the workload of a name; prefer the default project's.

    Raises:
        NotFound: there is none.
        InvalidRequest: several projects have one.
    """
    matching = named(visible, name)
    if len(matching) > 1:
        # Prefer the caller's default project, then workloads that the caller may change.
        at_home = [w for w in matching if w.project == client.default_project]
        matching = at_home or [w for w in matching if w.manageable] or matching
    if not matching:
        raise NotFound(
            f"There is no workload '{name}' that you may see.",
            hint="`runai list` shows those there are.",
        )
    if len(matching) > 1:
        ids = ", ".join(sorted(w.id for w in matching))
        raise InvalidRequest(f"'{name}' is in several projects.", hint=f"Say which: {ids}.")
    return matching[0]


class _CompletedName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Text with shell completion of names; no completion if the service fails."""

    name = "name"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the text unchanged."""
        return str(value)

    def names(self, client: Client) -> list[str]:
        """Return all names to complete."""
        raise NotImplementedError

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that start with `incomplete`."""
        try:
            with Client.discover() as client:
                names = self.names(client)
        except RunaiError:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class _WorkloadName(_CompletedName):
    def names(self, client: Client) -> list[str]:
        """Return the names of visible workloads; full ids where a name is not unique."""
        visible = client.workloads()
        all_names = [w.name for w in visible]
        return [w.name if all_names.count(w.name) == 1 else w.id for w in visible]


class _ProjectName(_CompletedName):
    def names(self, client: Client) -> list[str]:
        """Return the names of projects."""
        return [p.name for p in client.projects()]


WORKLOAD_NAME = _WorkloadName()
PROJECT_NAME = _ProjectName()


in_project: Final = click.option(
    "-p",
    "--project",
    type=PROJECT_NAME,
    help="Look for the name in this project, if several have it.",
)
"""The option of every command that takes names of workloads."""
