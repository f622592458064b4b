"""Column definitions of the tables of workloads, projects and devices.

A column has a heading, a cell function and a sort key; `runai list`, `runai top` and its live
screen share them. Pure functions of the API's replies and the current time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from rich.text import Text

from runai.hub_service.cli.output import render
from runai.hub_service.client import texts
from runai.hub_service.wire.device_schemas import DeviceView, NodeView
from runai.hub_service.wire.schemas import ProjectView, WorkloadView

Cell = str | Text
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column of a table."""

    heading: str
    cell: Callable[[T], Cell]
    key: Callable[[T], Any] | None = None
    """Sort key, largest first; None: sort by the cell's text."""
    is_wide: bool = False
    """Only shown with `-o wide`."""
    part: Callable[[T], float | None] | None = None
    """Fraction from 0 to 1 to draw as a bar; None: not measured."""
    compared: Callable[[T], Any] | None = None
    """The value that `list --watch` compares, without measurements and ages; None: the cell."""

    def order(self, items: Iterable[T], *, reverse: bool = False) -> list[T]:
        """Sort rows by this column: names from a to z, amounts from the largest."""
        if self.key is None:
            return sorted(items, key=lambda item: str(self.cell(item)), reverse=reverse)
        return sorted(items, key=self.key, reverse=not reverse)


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """The columns of a table for one type of rows."""

    columns: tuple[Column[T], ...]
    fold: str
    """Heading of the column that a narrow terminal wraps."""

    def visible_columns(self, *, wide: bool = False) -> list[Column[T]]:
        """Return the columns for this width."""
        return [column for column in self.columns if wide or not column.is_wide]

    def header(self, *, wide: bool = False) -> list[str]:
        """Return the headings of the columns for this width."""
        return [column.heading for column in self.visible_columns(wide=wide)]

    def rows(self, items: Iterable[T], *, wide: bool = False) -> list[list[Cell]]:
        """Return the cells of each row."""
        columns = self.visible_columns(wide=wide)
        return [[column.cell(item) for column in columns] for item in items]

    def compared(self, item: T, *, wide: bool = False) -> tuple[Any, ...]:
        """Return what of a row differs after a change."""
        return tuple(
            str(column.cell(item)) if column.compared is None else column.compared(item)
            for column in self.visible_columns(wide=wide)
        )

    def column(self, name: str) -> Column[T] | None:
        """Return the column for a heading as typed by a user: `util`, `avg-util`."""
        heading = name.replace("-", " ").upper()
        return next((c for c in self.columns if c.heading == heading), None)

    def show(
        self, items: Sequence[T], *, wide: bool = False, below: render.Layout | None = None
    ) -> render.Layout:
        """Print the table with these rows, or the rows alone `below` an earlier table."""
        rows = self.rows(items, wide=wide)
        return render.show_table(self.header(wide=wide), rows, fold=self.fold, below=below)


def _compare_nothing(_: object) -> None:
    """Compare nothing: the column changes without an event."""


def _utilization_key(
    of: Callable[[T], float], utilized: Callable[[T], float | None]
) -> Callable[[T], float]:
    """Return a sort key by utilization; unmeasured rows come last."""

    def key(item: T) -> float:
        used, whole = utilized(item), of(item)
        return -1.0 if used is None or not whole else used / whole

    return key


def _utilized_fraction(
    of: Callable[[T], float], utilized: Callable[[T], float | None]
) -> Callable[[T], float | None]:
    """Return the function of the fraction to draw; None: not measured."""
    utilization = _utilization_key(of, utilized)

    def fraction(item: T) -> float | None:
        value = utilization(item)
        return None if value < 0 else min(1.0, value)

    return fraction


def _reason(w: WorkloadView, now: datetime) -> Cell:
    """Return why a workload waits, ends or is idle, and its expected start."""
    text = texts.cause(w, now)
    return Text(text, style="yellow") if w.idle is not None or w.time_warning(now) else text


def _cause(w: WorkloadView, now: datetime) -> tuple[Any, ...]:
    """Return what `_reason` depends on, without its times."""
    why = None
    if w.reason is not None and texts.shows_reason(w):
        why = w.reason.code, w.reason.position
    return w.idle is not None, bool(w.time_warning(now)), why


def workload_table(now: datetime) -> Table[WorkloadView]:
    """Return the columns of workloads; `now` is the end of their age."""

    def listed(heading: str) -> Callable[[WorkloadView], str]:
        cell = texts.LIST_COLUMNS[heading]
        return lambda w: cell(w, now)

    return Table(
        (
            *(Column(heading, listed(heading)) for heading in ("NAME", "PROJECT", "USER")),
            Column("STATE", lambda w: render.state(w.state, listed("STATE")(w))),
            Column("GPUS", listed("GPUS"), lambda w: (w.allocated, w.gpus)),
            Column(
                "UTIL",
                listed("UTIL"),
                _utilization_key(lambda w: w.allocated, lambda w: w.measured.utilized),
                part=_utilized_fraction(lambda w: w.allocated, lambda w: w.measured.utilized),
                compared=_compare_nothing,
            ),
            Column(
                "AGE",
                listed("AGE"),
                lambda w: now - w.submitted,
                compared=_compare_nothing,
            ),
            Column("KIND", lambda w: w.kind, is_wide=True),
            Column("PRIORITY", lambda w: str(w.priority), lambda w: w.priority, is_wide=True),
            Column(
                "WORKERS",
                lambda w: str(len(w.workers) or 1),
                lambda w: len(w.workers) or 1,
                is_wide=True,
            ),
            Column("DEVICES", texts.devices, is_wide=True),
            Column("GPU TYPE", lambda w: w.gpu_type_text() or "-", is_wide=True),
            Column(
                "CPUS",
                lambda w: texts.gpus(w.cpu) if w.cpu else "-",
                lambda w: w.cpu,
                is_wide=True,
            ),
            Column(
                "MEMORY",
                lambda w: texts.memory(w.memory_mib or None),
                lambda w: w.memory_mib,
                is_wide=True,
            ),
            Column(
                "AVG UTIL",
                lambda w: texts.share(w.measured.utilized_average, w.gpus, simulated=w.simulated),
                _utilization_key(lambda w: w.gpus, lambda w: w.measured.utilized_average),
                is_wide=True,
                compared=_compare_nothing,
            ),
            Column(
                "GPU MEMORY",
                lambda w: texts.memory(w.measured.memory_used_mib),
                lambda w: w.measured.memory_used_mib or -1,
                is_wide=True,
                compared=_compare_nothing,
            ),
            Column("PAUSES", lambda w: str(w.pauses), lambda w: w.pauses, is_wide=True),
            Column("MOVED", lambda w: w.moved.removeprefix("moved ") or "-", is_wide=True),
            Column("REASON", lambda w: _reason(w, now), compared=lambda w: _cause(w, now)),
        ),
        fold="REASON",
    )


def project_table(*, simulated: bool = False) -> Table[ProjectView]:
    """Return the columns of projects; `simulated` marks measurements of simulated devices."""
    endless = float("inf")
    return Table(
        (
            Column("NAME", lambda p: p.name),
            Column("ALLOCATED", lambda p: texts.gpus(p.allocated), lambda p: p.allocated),
            Column(
                "QUOTA",
                render.quota_of,
                lambda p: endless if p.quota is None else p.quota,
            ),
            Column("OVER QUOTA", lambda p: texts.gpus(p.over_quota), lambda p: p.over_quota),
            Column("BUILD", lambda p: texts.gpus(p.build_allocated), lambda p: p.build_allocated),
            Column(
                "BUILD QUOTA",
                lambda p: render.quota(p.build_quota),
                lambda p: endless if p.build_quota is None else p.build_quota,
            ),
            Column(
                "UTIL",
                lambda p: texts.share(p.utilized, p.allocated, simulated=simulated),
                _utilization_key(lambda p: p.allocated, lambda p: p.utilized),
                part=_utilized_fraction(lambda p: p.allocated, lambda p: p.utilized),
                compared=_compare_nothing,
            ),
            Column("WAITING", lambda p: str(p.waiting), lambda p: p.waiting),
            Column(
                "FAIR SHARE",
                lambda p: texts.gpus(p.fair_share),
                lambda p: p.fair_share,
                is_wide=True,
            ),
            Column(
                "LIMIT",
                lambda p: render.quota(p.limit),
                lambda p: endless if p.limit is None else p.limit,
                is_wide=True,
            ),
            Column(
                "WEIGHT",
                lambda p: "-" if p.weight is None else str(p.weight),
                lambda p: -1 if p.weight is None else p.weight,
                is_wide=True,
            ),
            Column("PRIORITY", lambda p: str(p.priority), lambda p: p.priority, is_wide=True),
            Column("PARENT", lambda p: p.parent or "-", is_wide=True),
            Column("MEMBERS", lambda p: render.listed(p.members), is_wide=True),
            Column("GROUPS", lambda p: render.listed(p.groups), is_wide=True),
            Column("ADMINS", lambda p: render.listed(p.admins), is_wide=True),
        ),
        fold="MEMBERS",
    )


class DeviceOf(NamedTuple):
    """A device and the name of its node."""

    node: str
    device: DeviceView


def devices_of(nodes: Iterable[NodeView]) -> list[DeviceOf]:
    """Return the devices of all nodes."""
    return [DeviceOf(node.name, device) for node in nodes for device in node.devices]


def _users_of(at: DeviceOf) -> str:
    """Return the workloads and other programs on a device, with their shares."""
    # The service names workloads of other projects to their members and to hub admins only.
    holders = [
        f"{a.workload or 'another project'} {texts.gpus(a.gpus)}" for a in at.device.allocations
    ]
    holders += [
        f"others{f' ({o.account})' if o.account else ''} {texts.memory(o.memory_mib)}"
        for o in at.device.others
    ]
    return render.listed(holders)


def _compared_users(at: DeviceOf) -> tuple[Any, ...]:
    """Return the holders of `_users_of` without the memory that they use."""
    allocations = [(a.workload, a.gpus) for a in at.device.allocations]
    return allocations, [o.account for o in at.device.others]


def _model(at: DeviceOf) -> Cell:
    name = f"{at.device.name}{'*' if at.device.simulated else ''}"
    return name if at.device.healthy else Text(f"{name} broken", style="red")


def _memory_used(at: DeviceOf) -> str:
    return f"{texts.memory(at.device.memory_used_mib)}/{texts.memory(at.device.memory_mib)}"


def node_table() -> Table[DeviceOf]:
    """Return the columns of the nodes' devices."""
    return Table(
        (
            Column("NODE", lambda at: at.node),
            Column("GPU", lambda at: str(at.device.device), lambda at: -at.device.device),
            Column("DEVICE", _model),
            Column(
                "ALLOCATED",
                lambda at: texts.gpus(at.device.allocated),
                lambda at: at.device.allocated,
            ),
            Column(
                "UTIL",
                lambda at: texts.share(at.device.utilized, 1, simulated=at.device.simulated),
                _utilization_key(lambda _: 1, lambda at: at.device.utilized),
                part=_utilized_fraction(lambda _: 1, lambda at: at.device.utilized),
                compared=_compare_nothing,
            ),
            Column(
                "MEMORY",
                _memory_used,
                lambda at: at.device.memory_used_mib or -1,
                compared=_compare_nothing,
            ),
            Column("HELD BY", _users_of, compared=_compared_users),
            Column(
                "HEALTH",
                lambda at: (
                    "healthy"
                    if at.device.healthy
                    else Text(at.device.fault or "broken", style="red")
                ),
                is_wide=True,
            ),
            Column("UUID", lambda at: at.device.uuid, is_wide=True),
        ),
        fold="HELD BY",
    )


def beside_gpus(nodes: Sequence[NodeView]) -> str:
    """Return what of the nodes' CPU and memory is requested; nothing of one without a bound.

    >>> node = NodeView(name="n1", devices=[], cpus=16, cpus_allocated=2.5, memory_mib=65536)
    >>> beside_gpus([node, node]), beside_gpus([NodeView(name="n2", devices=[])])
    ('5 of 32 CPUs and 0M of 128G memory requested', '')
    """
    parts = []
    cpus = [node.cpus for node in nodes if node.cpus is not None]
    memory = [node.memory_mib for node in nodes if node.memory_mib is not None]
    if cpus and len(cpus) == len(nodes):
        used = texts.gpus(sum(node.cpus_allocated for node in nodes))
        word = "simulated CPUs" if _all_simulated(nodes) else "CPUs"
        parts.append(f"{used} of {texts.gpus(sum(cpus))} {word}")
    if memory and len(memory) == len(nodes):
        used = texts.memory(sum(node.memory_allocated_mib for node in nodes))
        parts.append(f"{used} of {texts.memory(sum(memory))} memory")
    return f"{' and '.join(parts)} requested" if parts else ""


def _all_simulated(nodes: Iterable[NodeView]) -> bool:
    devices = [device for node in nodes for device in node.devices]
    return bool(devices) and all(device.simulated for device in devices)


def any_simulated(nodes: Iterable[NodeView]) -> bool:
    """Return True if any device is simulated."""
    return any(device.simulated for node in nodes for device in node.devices)
