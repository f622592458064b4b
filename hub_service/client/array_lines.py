"""Job arrays in lists: the entries of one array as a line, and an element by itself.

A list of workloads has an entry for each element that has begun, and one for the rest.
"""

import re
from collections.abc import Iterable, Sequence

from runai.hub_service.wire.schemas import WorkloadStateName, WorkloadView

_INDEX = re.compile(r"0|[1-9][0-9]{0,4}")
_OF_LINE = re.compile(r"-\[0-[0-9]+\]$")

_FIRST_OF: tuple[WorkloadStateName, ...] = (
    *("running", "starting", "stopping", "paused", "retrying"),
    *("queued", "suspended", "failed", "timed_out", "succeeded", "ended"),
)
"""Priority of states: a line shows the first one that an element has."""


def array_name(view: WorkloadView) -> str:
    """Return the id of the array that an entry is, or belongs to; "": it is no array."""
    if view.array is not None and view.array_index is None:
        return view.id
    return view.id.rpartition("-")[0] if view.array_index is not None else ""


def folded(workloads: Iterable[WorkloadView]) -> list[WorkloadView]:
    """Return one entry for each array, at the place of its first one; keep other entries."""
    views_by_name: dict[str, list[WorkloadView]] = {}
    for view in workloads:
        views_by_name.setdefault(array_name(view) or view.id, []).append(view)
    return [
        _line(name, views) if array_name(views[0]) else views[0]
        for name, views in views_by_name.items()
    ]


def counts_text(states: dict[WorkloadStateName, int]) -> str:
    """Return the states of an array's elements in words.

    >>> counts_text({"queued": 9988, "running": 12})
    '12 running, 9,988 queued'
    """
    return ", ".join(
        f"{states[state]:,} {state.replace('_', ' ')}" for state in _FIRST_OF if states.get(state)
    )


def element_of(rest: WorkloadView, index: int) -> WorkloadView | None:
    """Return the entry of one element among those that an array's own entry stands for."""
    if not any(begin <= index < end for begin, end in rest.left):
        return None
    changed = {"array_index": index, "left": [], "name": f"{rest.name}-{index}"}
    return rest.model_copy(update=changed | {"id": f"{rest.id}-{index}"})


def named(workloads: Sequence[WorkloadView], name: str) -> list[WorkloadView]:
    """Return the entries that a name may mean, with or without its project.

    `sweep` and `sweep-[0-9]` are a whole array, `sweep-3` is an element, whether it has begun or
    not.
    """
    name = _OF_LINE.sub("", name)
    entries = [view for view in workloads if name in {view.id, view.name}]
    array, _, index = name.rpartition("-")
    if _INDEX.fullmatch(index):
        array_views = [view for view in workloads if array in {view.id, view.name}]
        elements = (element_of(view, int(index)) for view in array_views)
        entries += [view for view in elements if view is not None]
    lines = [line for line in folded(workloads) if line.states] if not entries else []
    return entries or [line for line in lines if name in {line.id, line.id.partition("/")[2]}]


def _line(array: str, views: Sequence[WorkloadView]) -> WorkloadView:
    """Return the entry of a whole array, with the states and the sums of its elements."""
    rest = next((view for view in views if view.array_index is None), None)
    base = views[0] if rest is None else rest
    states: dict[WorkloadStateName, int] = {}
    for view in views:
        states[view.state] = states.get(view.state, 0) + view.size
    busy = [v.measured.utilized for v in views if v.measured.utilized is not None]
    gpu_hours = sum(view.measured.gpu_hours for view in views)
    length = base.array or 1 + max(view.array_index or 0 for view in views)
    name = array.partition("/")[2]
    return base.model_copy(
        update={
            "id": array,
            "name": f"{name}-[0-{length - 1}]",
            "state": next(state for state in _FIRST_OF if state in states),
            "states": states,
            "array": length,
            "array_index": None,
            "gpus": base.gpus * sum(states.values()),
            "allocated": sum(view.allocated for view in views),
            "measured": base.measured.model_copy(
                update={"utilized": sum(busy) if busy else None, "gpu_hours": gpu_hours}
            ),
            "workers": [worker for view in views for worker in view.workers],
            "submitted": min(view.submitted for view in views),
            "reason": None if rest is None else rest.reason,
        }
    )
