"""The spawn form: what a user may ask for, what is free now, what would have to wait and why.

Asks the service once per page, for a second at most; the scheduler itself says what would wait (a
dry run for each amount on offer). The form's fields become user options here too, and are parsed
again at the start: the REST API has no form. Called by the spawners.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, Template, select_autoescape

from runai.hub_service.client import AsyncClient
from runai.hub_service.limits.tiers import COMPUTE_IS_SHARED
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.errors import InvalidRequest, RunaiError
from runai.hub_service.wire.schemas import Overview, ProjectView, SubmitRequest
from runai.hub_service.wire.validation import checked
from runai.spawner.amount import NO_GPU, Amount
from runai.spawner.free_map import FreeMap, free_map
from runai.spawner.session import SessionRequest

ANSWER_SECONDS: Final = 1.0
FRACTIONS: Final = (250, 500, 1000)  # a quarter, a half, one: enough to choose from at a glance
OTHER: Final = "other"
_LABELS: Final = {0: "Without a GPU", 250: "¼ GPU", 500: "½ GPU", 750: "¾ GPU", 1000: "1 GPU"}


@dataclass(frozen=True, slots=True)
class Person:
    """For whom the form is."""

    name: str
    groups: frozenset[str] = frozenset()
    server: str = ""

    def is_member(self, project: ProjectView) -> bool:
        """Say whether they may start sessions in a project: its members and admins may."""
        return (
            self.name in project.members
            or self.name in project.admins
            or not self.groups.isdisjoint([*project.groups, *project.admin_groups])
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One amount on offer; `waits` is why it would not start at once, "" if it would."""

    amount: Amount
    label: str
    detail: str = ""
    waits: str = ""
    refused: str = ""
    is_known: bool = True

    @property
    def value(self) -> str:
        """Return what the form sends."""
        return self.amount.text()


@dataclass(frozen=True, slots=True)
class ProjectChoices:
    """What one project offers."""

    name: str
    summary: str
    choices: Sequence[Choice] = field(default=())


class Offer(NamedTuple):
    """What is offered in each project, and what is free."""

    projects: Sequence[ProjectChoices] = ()
    free: FreeMap = FreeMap()


def offers(project: ProjectView, nodes: Sequence[NodeView]) -> list[Amount]:
    """Return the amounts that a project's sessions could ever get: ¼, ½, 1, 2, 4 … GPUs."""
    most = max((len(node.devices) for node in nodes), default=0) * 1000
    room = build_room(project)
    if room is not None:
        most = min(most, room)
    doubled = (1000 * 2**power for power in range(1, 11))
    return [Amount(milli_gpus=milli) for milli in (*FRACTIONS, *doubled) if milli <= most]


def build_room(project: ProjectView) -> int | None:
    """Return the milli-GPU that sessions may use in all, None without a bound."""
    bounds = [gpus for gpus in (project.build_quota, project.quota) if gpus is not None]
    return round(min(bounds) * 1000) if bounds else None


async def form_choices(client: AsyncClient, person: Person) -> Offer:
    """Ask the service what it would say to each amount; what it does not say in time stays open.

    Raises:
        RunaiError, TimeoutError: the service does not answer at all.
    """
    async with asyncio.timeout(ANSWER_SECONDS):
        overview = await client.overview()
    asked = [
        (project, amount)
        for project in overview.projects
        if person.is_member(project)
        for amount in offers(project, overview.nodes)
    ]
    answers: dict[tuple[str, Amount], Choice] = {}

    async def ask(project: ProjectView, amount: Amount) -> None:
        answers[project.name, amount] = await _asked(client, person, project, amount, overview)

    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS), asyncio.TaskGroup() as group:
            for project, amount in asked:
                group.create_task(ask(project, amount))
    projects = [
        ProjectChoices(
            project.name,
            _summary(project),
            [
                *(
                    answers.get((project.name, amount)) or _choice(amount, overview, is_known=False)
                    for amount in offers(project, overview.nodes)
                ),
                _choice(NO_GPU, overview),
            ],
        )
        for project in overview.projects
        if person.is_member(project)
    ]
    return Offer(projects, free_map(overview.nodes))


def render(
    projects: Sequence[ProjectChoices],
    *,
    free: FreeMap | None = None,
    last: Mapping[str, Any],
    trouble: str = "",
    sharing: str = COMPUTE_IS_SHARED,
) -> str:
    """Return the form's HTML, the last choice marked.

    `trouble` says what could not be asked, `sharing` what those who share a GPU share of it.
    """
    request = None
    with suppress(InvalidRequest):  # what an earlier version or another spawner kept
        request = SessionRequest.parse(last) if last else None
    return _rendered(Offer(projects, free or FreeMap()), request, trouble, sharing)


def options_of(fields: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Turn the form's fields into user options.

    Raises:
        InvalidRequest: a field cannot be meant.
    """
    first = {name: values[0] for name, values in fields.items() if values}
    first.pop("_xsrf", None)
    if not first:
        # A form that was sent before and is loaded again has nothing but its token.
        raise InvalidRequest("Nothing was chosen.", hint="Choose an amount of GPU, or none.")
    amount = first.pop("amount", "")
    gpus = first.pop("gpus", "0")
    if gpus == OTHER:
        if not amount.strip():
            raise InvalidRequest(
                "The other amount is empty.", hint="Write for example 0.35 or 8 GiB."
            )
        gpus = amount
    return SessionRequest.parse({**first, "gpus": gpus}).options()


async def _asked(
    client: AsyncClient, person: Person, project: ProjectView, amount: Amount, overview: Overview
) -> Choice:
    fields = {
        "project": project.name,
        "kind": "session",
        "owner": person.name,
        "server": person.server,
        "gpus": amount.gpus,
    }
    try:
        request = checked(SubmitRequest, fields)
        reply = await client.submit(request, dry_run=True)
    except RunaiError as error:
        return _choice(amount, overview, refused=error.message)
    tried = reply.workloads[0]
    start = tried.expected_start.text if tried.expected_start else ""
    waits = "; ".join(part for part in (tried.reason.text, start) if part) if tried.reason else ""
    return _choice(amount, overview, waits=waits)


def _choice(
    amount: Amount,
    overview: Overview,
    *,
    waits: str = "",
    refused: str = "",
    is_known: bool = True,
) -> Choice:
    milli = amount.milli_gpus
    return Choice(
        amount,
        label=_LABELS.get(milli, f"{amount.text()} GPUs"),
        detail=_memory(milli, overview.nodes),
        waits=waits,
        refused=refused,
        is_known=is_known,
    )


def _memory(milli: int, nodes: Sequence[NodeView]) -> str:
    """Say how much memory comes with an amount, where all devices have the same."""
    sizes = {device.memory_mib for node in nodes for device in node.devices}
    simulated = any(device.simulated for node in nodes for device in node.devices)
    if not milli or len(sizes) != 1 or sizes == {0}:  # 0: nobody knows
        return ""
    return f"{milli * sizes.pop() / 1000 / 1024:.0f} GiB{' (simulated)' if simulated else ''}"


def _summary(project: ProjectView) -> str:
    room = build_room(project)
    used = f"{project.build_allocated:g}"
    if room is None:
        return f"sessions use {used} GPUs"
    return f"sessions use {used} of {room / 1000:g} GPUs"


@cache
def _template() -> Template:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=select_autoescape())
    return environment.get_template("form.html")


def _rendered(offer: Offer, last: SessionRequest | None, trouble: str, sharing: str) -> str:
    projects = offer.projects
    names = [project.name for project in projects]
    chosen = last.project if last and last.project in names else next(iter(names), "")
    marked: Callable[[ProjectChoices], str] = lambda project: _marked(project, last)  # noqa: E731
    return _template().render(
        projects=projects,
        free=offer.free,
        chosen=chosen,
        marks={project.name: marked(project) for project in projects},
        written=last.amount.text() if last else "",
        trouble=trouble,
        sharing=sharing,
        other=OTHER,
    )


def _marked(project: ProjectChoices, last: SessionRequest | None) -> str:
    """Return the value that is marked at first: the last choice, else the first that is free."""
    possible = [choice for choice in project.choices if not choice.refused]
    if last is not None:
        if any(choice.amount == last.amount for choice in possible):
            return last.amount.text()
        return OTHER
    free = [choice for choice in possible if not choice.waits]
    return next((choice.value for choice in (*free, *possible)), OTHER)
