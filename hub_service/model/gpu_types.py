"""GPU types by words of their names: of requests, and of quota tables `{"h100": 2, "*": 4}`.

Pure. The scheduler guarantees exact types only: an entry of a table is the quota of one type, and
`*` that of all others together.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from runai.hub_service.scheduler.model.quantity import MilliGpu, gpu_text
from runai.hub_service.wire.errors import InvalidRequest

OTHER_TYPES = "*"

QuotaTable = Mapping[str, MilliGpu | None]
"""Quota by name of a type; None: unlimited."""


def total(table: QuotaTable) -> MilliGpu | None:
    """Return the sum of a table; None: an entry is unlimited.

    >>> total({"h100": MilliGpu(2000), "*": MilliGpu(500)})
    2500
    """
    return _sum(table.values())


def by_node_type(table: QuotaTable, node_types: Collection[str]) -> dict[str, MilliGpu | None]:
    """Return a table by the names of the nodes' types.

    A name that no node has stays; of several types that have its words the first is meant. Names
    that mean the same type add up.

    >>> by_node_type({"h100": MilliGpu(2000), "k40": None}, ["NVIDIA-H100-SXM5"])
    {'NVIDIA-H100-SXM5': 2000, 'k40': None}
    """
    resolved: dict[str, MilliGpu | None] = {}
    for name, amount in table.items():
        gpu_type = _types_or_name(name, node_types)[0]
        resolved[gpu_type] = _sum([amount, resolved.get(gpu_type, MilliGpu(0))])
    return resolved


def checked_table(table: QuotaTable, node_types: Collection[str]) -> dict[str, MilliGpu | None]:
    """Return a table to store, by the names of the nodes' types where a node has the type.

    Raises:
        InvalidRequest: a name means several types, or two names mean the same one.
    """
    name_of: dict[str, str] = {}
    for name in table:
        matches = _types_or_name(name, node_types)
        if len(matches) > 1:
            raise InvalidRequest(
                f"A quota of {name} GPUs is ambiguous: {' and '.join(matches)} are of that name.",
                hint="Give each type its own quota, by more words of its name.",
                code="ambiguous_gpu_type",
            )
        if matches[0] in name_of:
            raise InvalidRequest(
                f"{name_of[matches[0]]} and {name} are the same GPU type: {matches[0]}.",
                hint="Give the quota of a type once.",
                code="ambiguous_gpu_type",
            )
        name_of[matches[0]] = name
    return by_node_type(table, node_types)


def table_notes(table: QuotaTable, node_types: Collection[str]) -> list[str]:
    """Return a sentence for each entry that guarantees something else than it seems to."""
    notes = []
    for name, amount in table.items():
        matches = _types_or_name(name, node_types)
        if len(matches) > 1:
            notes.append(
                f"{' and '.join(matches)} are both called {name}: the quota is of {matches[0]}."
            )
        elif name != OTHER_TYPES and matches[0] not in node_types:
            share = "unlimited" if amount is None else gpu_text(amount)
            notes.append(
                f"No node has a GPU of type {name}: the quota of {share} counts once one has."
            )
    return notes


def largest_entry(
    table: QuotaTable, types: Collection[str], node_types: Collection[str]
) -> MilliGpu | None:
    """Return the largest entry for one of these types of the nodes; None: unlimited.

    Without types, of all entries. A workload is charged to one, however many it could have used.
    """
    entry_of = by_node_type(table, node_types)
    entries = [entry_of.get(t, entry_of.get(OTHER_TYPES, MilliGpu(0))) for t in types] or [
        *entry_of.values()
    ]
    bounded = [entry for entry in entries if entry is not None]
    return max(bounded) if len(bounded) == len(entries) else None


def _sum(amounts: Collection[MilliGpu | None]) -> MilliGpu | None:
    bounded = [amount for amount in amounts if amount is not None]
    return MilliGpu(sum(bounded)) if len(bounded) == len(amounts) else None


def _types_or_name(name: str, node_types: Collection[str]) -> list[str]:
    """Return the node types of a table's entry; its own name if no node has one."""
    return [name] if name == OTHER_TYPES else types_named(name, node_types) or [name]


_BETWEEN = re.compile(r"[\s_-]+")


def resolve_types(names: str, node_types: Iterable[str]) -> tuple[str, ...]:
    """Return the types of these names, separated by commas, in their order of preference.

    A name means the type of that name, else each type with all of its words.

    >>> resolve_types("a100", ["NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA A100-PCIE-40GB"])
    ('NVIDIA A100-PCIE-40GB', 'NVIDIA A100-SXM4-80GB')
    >>> resolve_types("l4, A100 80GB", ["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB", "L4"])
    ('L4', 'NVIDIA-A100-SXM4-80GB')
    >>> resolve_types("nvidia l4", ["NVIDIA L4", "NVIDIA L4 24GB"])
    ('NVIDIA L4',)

    Raises:
        InvalidRequest: a name means none; the hint lists the existing types.
    """
    known = sorted({name for name in node_types if name})
    matches: dict[str, None] = {}
    for name in names.split(","):
        named = types_named(name, known)
        if not named:
            raise InvalidRequest(
                f"There is no GPU of type {name.strip() or names}.",
                hint=f"There is {' and '.join(known)}."
                if known
                else "No node says which type it has.",
                code="no_such_gpu_type",
            )
        matches.update(dict.fromkeys(named))
    return tuple(matches)


def types_named(name: str, node_types: Iterable[str]) -> list[str]:
    """Return the types of that name, else with all of its words, sorted; [] if there is none.

    >>> types_named("h100", ["NVIDIA A100"])
    []
    """
    known, words = sorted({*node_types} - {""}), _words(name)
    exactly = [t for t in known if _words(t) == words]
    return exactly or [t for t in known if words and {*words} <= {*_words(t)}]


def _words(name: str) -> list[str]:
    return [word for word in _BETWEEN.split(name.lower()) if word]
