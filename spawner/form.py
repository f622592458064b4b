"""The spawn form: amounts on offer, free GPUs, and the expected wait of each amount.

Building a page queries the service within 2 s: the overview, then a dry run of each amount, so
that the scheduler itself reports the wait. Form fields become user options here; the start parses
them again, since the REST API has no form.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, Template, select_autoescape

from runai.hub_service.client import AsyncClient
from runai.hub_service.limits.tiers import COMPUTE_IS_SHARED
from runai.hub_service.wire.amounts import clock_text
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.errors import InvalidRequest, RunaiError
from runai.hub_service.wire.schemas import Overview, ProjectView
from runai.hub_service.wire.validation import checked
from runai.hub_service.wire.workload_request import (
    Executor,
    RequestField,
    SubmitRequest,
    form_help_texts,
)
from runai.spawner.amount import NO_GPU, Amount
from runai.spawner.free_map import FreeMap, free_map
from runai.spawner.session_request import SPAWN_FIELDS, SessionRequest

ANSWER_SECONDS: Final = 1.0
FRACTIONS: Final = (250, 500, 1000)  # a quarter, a half, one: enough to choose from at a glance
OTHER: Final = "other"
_LABELS: Final = {0: "Without a GPU", 250: "¼ GPU", 500: "½ GPU", 750: "¾ GPU", 1000: "1 GPU"}


@dataclass(frozen=True, slots=True)
class Person:
    """The user that the form is rendered for."""

    name: str
    groups: frozenset[str] = frozenset()
    server: str = ""

    def is_member(self, project: ProjectView) -> bool:
        """Return True if the user may start a project's sessions, as member or admin."""
        return (
            self.name in project.members
            or self.name in project.admins
            or not self.groups.isdisjoint([*project.groups, *project.admin_groups])
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One amount on offer. `waits` is the reason for a wait, "" if it would start at once.

    With `is_soon` it waits only for workloads that stop for it.
    """

    amount: Amount
    label: str
    detail: str = ""
    waits: str = ""
    is_soon: bool = False
    refused: str = ""
    is_known: bool = True
    unchecked: str = ""
    """What may still delay it though nothing waits; "": nothing."""

    @property
    def is_free(self) -> bool:
        """Return True if it is known to start at once."""
        return self.is_known and not self.waits and not self.refused

    @property
    def value(self) -> str:
        """Return the value that the form submits."""
        return self.amount.text()


@dataclass(frozen=True, slots=True)
class ProjectChoices:
    """The amounts that one project offers."""

    name: str
    summary: str
    choices: Sequence[Choice] = field(default=())


class Offer(NamedTuple):
    """The choices of each project, and the free GPUs."""

    projects: Sequence[ProjectChoices] = ()
    free: FreeMap = FreeMap()
    gpu_types: Sequence[str] = ()
    """Types of GPU to choose from, if there are several."""
    device_mib: int = 0
    """Memory of each device; 0: unknown, or there are several sizes."""
    unchecked: str = ""
    """What may still delay a free choice, for example "taints, volumes, admission"; "": nothing."""


def possible_amounts(project: ProjectView, nodes: Sequence[NodeView]) -> list[Amount]:
    """Return the amounts possible for a project's sessions: ¼, ½, 1, 2, 4 … GPUs."""
    max_milli = max((len(node.devices) for node in nodes), default=0) * 1000
    limit = build_limit(project)
    if limit is not None:
        max_milli = min(max_milli, limit)
    doubled = (1000 * 2**power for power in range(1, 11))
    return [Amount(milli_gpus=milli) for milli in (*FRACTIONS, *doubled) if milli <= max_milli]


def build_limit(project: ProjectView) -> int | None:
    """Return the limit of a project's sessions together in milli-GPUs; None: unlimited."""
    bounds = [gpus for gpus in (project.build_quota, project.quota) if gpus is not None]
    return round(min(bounds) * 1000) if bounds else None


async def form_choices(client: AsyncClient, person: Person) -> Offer:
    """Dry-run each amount on offer; amounts without a timely answer have `is_known` False.

    Raises:
        RunaiError, TimeoutError: the service does not return its overview within 1 s.
    """
    async with asyncio.timeout(ANSWER_SECONDS):
        overview = await client.overview()
    candidates = [
        (project, amount)
        for project in overview.projects
        if person.is_member(project)
        for amount in possible_amounts(project, overview.nodes)
    ]
    answers: dict[tuple[str, Amount], Choice] = {}

    async def dry_run(project: ProjectView, amount: Amount) -> None:
        answers[project.name, amount] = await _dry_run_choice(
            client, person, project, amount, overview
        )

    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS), asyncio.TaskGroup() as group:
            for project, amount in candidates:
                group.create_task(dry_run(project, amount))
    projects = [
        ProjectChoices(
            project.name,
            _summary(project),
            [
                *(
                    answers.get((project.name, amount)) or _choice(amount, overview, is_known=False)
                    for amount in possible_amounts(project, overview.nodes)
                ),
                _choice(NO_GPU, overview),
            ],
        )
        for project in overview.projects
        if person.is_member(project)
    ]
    nodes = overview.nodes
    unchecked = next((each.unchecked for each in answers.values() if each.unchecked), "")
    return Offer(projects, free_map(nodes), _gpu_types(nodes), _device_mib(nodes), unchecked)


def _gpu_types(nodes: Sequence[NodeView]) -> Sequence[str]:
    """Return the types of GPU, none if there is one only."""
    types = sorted({device.name for node in nodes for device in node.devices})
    return types if len(types) > 1 else ()


def render(
    projects: Sequence[ProjectChoices],
    *,
    free: FreeMap | None = None,
    gpu_types: Sequence[str] = (),
    device_mib: int = 0,
    unchecked: str = "",
    last: Mapping[str, Any],
    trouble: str = "",
    sharing: str = COMPUTE_IS_SHARED,
    of_machine: bool = False,
    is_admin: bool = False,
    has_failed: bool = False,
) -> str:
    """Return the form's HTML with the last choice selected.

    `trouble` is the sentence about a failed request, `sharing` the one about sharing a GPU.
    With `of_machine` there are fields for CPU and memory. `is_admin`: the reader is a hub admin.
    After a start that `has_failed` the form offers one without the user's settings.
    """
    request = None
    with suppress(InvalidRequest):  # options of an earlier version or another spawner
        request = SessionRequest.parse(last) if last else None
    offer = Offer(projects, free or FreeMap(), gpu_types, device_mib, unchecked)
    return _template().render(
        **_template_values(offer, request),
        fields=_form_fields("local" if of_machine else "kubernetes"),
        trouble=trouble,
        sharing=sharing,
        is_admin=is_admin,
        has_failed=has_failed,
    )


def _form_fields(executor: Executor) -> list[tuple[RequestField, str]]:
    """Return the fields to write into, each with its hint; the type of GPU is chosen."""
    hints = form_help_texts()
    return [
        (field, hints[field.name].replace(" for each worker", ""))  # a session is one process
        for field in SPAWN_FIELDS
        if executor in field.option.in_spawn_form and field.name != "gpu_type"
    ]


def options_of(fields: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Convert the form's fields to user options.

    Raises:
        InvalidRequest: a field is not valid.
    """
    options = {name: values[0] for name, values in fields.items() if values}
    options.pop("_xsrf", None)
    if not options:
        # Reloading a submitted form sends its XSRF token alone.
        raise InvalidRequest("Nothing was chosen.", hint="Choose an amount of GPU, or none.")
    amount = options.pop("amount", "")
    gpus = options.pop("gpus", "0")
    if gpus == OTHER:
        if not amount.strip():
            raise InvalidRequest(
                "The other amount is empty.", hint="Write for example 0.35 or 8 GiB."
            )
        gpus = amount
    return SessionRequest.parse({**options, "gpus": gpus}).options()


async def _dry_run_choice(
    client: AsyncClient, person: Person, project: ProjectView, amount: Amount, overview: Overview
) -> Choice:
    """Dry-run a session with an amount; return the choice with its wait or refusal."""
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
    workload = reply.workloads[0]
    if workload.reason is None:
        return _choice(amount, overview, unchecked=reply.unchecked)
    if workload.reason.is_making_room:
        return _choice(amount, overview, waits=workload.reason.text, is_soon=True)
    start = workload.expected_start.text if workload.expected_start else ""
    waits = "; ".join(part for part in (workload.reason.text, start) if part)
    return _choice(amount, overview, waits=waits)


def _choice(
    amount: Amount,
    overview: Overview,
    *,
    waits: str = "",
    is_soon: bool = False,
    refused: str = "",
    is_known: bool = True,
    unchecked: str = "",
) -> Choice:
    milli = amount.milli_gpus
    return Choice(
        amount,
        label=_LABELS.get(milli, f"{amount.text()} GPUs"),
        detail=_memory_text(milli, overview.nodes),
        waits=waits,
        is_soon=is_soon,
        refused=refused,
        is_known=is_known,
        unchecked=unchecked,
    )


def _memory_text(milli: int, nodes: Sequence[NodeView]) -> str:
    """Return the memory of an amount for display, "" unless all devices have the same size."""
    size = _device_mib(nodes)
    simulated = any(device.simulated for node in nodes for device in node.devices)
    if not milli or not size:
        return ""
    return f"{milli * size / 1000 / 1024:.0f} GiB{' (simulated)' if simulated else ''}"


def _device_mib(nodes: Sequence[NodeView]) -> int:
    """Return the memory of each device in MiB; 0: unknown, or sizes differ."""
    sizes = {device.memory_mib for node in nodes for device in node.devices}
    return sizes.pop() if len(sizes) == 1 else 0


def _summary(project: ProjectView) -> str:
    """Return a line about a project's build quota and its sessions' time limits."""
    rules = project.time_session
    default_s = rules.default_s or rules.most_s
    limit_text = f" · at most {clock_text(rules.most_s)}" if rules.most_s else ""
    return (
        _quota_text(project)
        + (
            f" · ends after {clock_text(default_s)} unless you choose another time"
            if default_s
            else ""
        )
        + limit_text
    )


def _quota_text(project: ProjectView) -> str:
    limit = build_limit(project)
    used = f"{project.build_allocated:g}"
    if limit is None:
        return f"build quota: unlimited, {used} in use"
    return f"build quota: {used} of {limit / 1000:g} GPUs in use"


@cache
def _template() -> Template:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=select_autoescape())
    return environment.get_template("form.html")


def _template_values(offer: Offer, last: SessionRequest | None) -> dict[str, Any]:
    """Return the template's values from the offer and the last choice, which is selected."""
    projects = offer.projects
    names = [project.name for project in projects]
    chosen = last.project if last and last.project in names else next(iter(names), "")
    return {
        "projects": projects,
        "free": offer.free,
        "chosen": chosen,
        "marks": {project.name: _selected_value(project, last) for project in projects},
        "written": last.amount.text() if last else "",
        "gpu_types": offer.gpu_types,
        "device_mib": offer.device_mib,
        "unchecked": offer.unchecked,
        "written_options": last.options() if last else {},
        "other": OTHER,
    }


def _selected_value(project: ProjectChoices, last: SessionRequest | None) -> str:
    """Return the value selected at first: the last choice, else the first with GPUs soonest."""
    possible = [choice for choice in project.choices if not choice.refused]
    if last is not None:
        if any(choice.amount == last.amount for choice in possible):
            return last.amount.text()
        return OTHER
    not_waiting = [choice for choice in possible if not choice.waits]  # also those not checked
    with_gpus = [c for c in not_waiting if c.is_free and not c.amount.is_nothing]
    soon = [choice for choice in possible if choice.is_soon]
    return next((choice.value for choice in (*with_gpus, *soon, *not_waiting, *possible)), OTHER)
