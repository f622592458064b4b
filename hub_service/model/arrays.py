"""Job arrays: one record for all elements that have not begun.

Element 17 of `vision/sweep` is `vision/sweep-17`. The array's own record has the indexes that are
left; an element gets a record of its own when something happens to it alone.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from runai.hub_service.model.records import (
    Ranges,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)

DIGITS = "0123456789"


def element(spec: WorkloadSpec, index: int) -> WorkloadSpec:
    """Return the specification of an array's element."""
    return replace(spec, name=f"{spec.name}-{index}", array_index=index)


def element_id(array: WorkloadId, index: int) -> WorkloadId:
    """Return the id of an array's element.

    >>> element_id("vision/sweep", 17)
    'vision/sweep-17'
    """
    return f"{array}-{index}"


def names_of(spec: WorkloadSpec) -> list[WorkloadId]:
    """Return the ids that a submission takes: its own, and of an array those of all elements."""
    elements = range(spec.array or 0) if spec.is_array else ()
    return [spec.id, *(element_id(spec.id, index) for index in elements)]


def array_id(record: WorkloadRecord) -> WorkloadId:
    """Return the id of the array that a record is, or to which it belongs."""
    return record.id if record.spec.array_index is None else record.id.rpartition("-")[0]


def split_id(workload: WorkloadId) -> tuple[WorkloadId, int] | None:
    """Return the array and the index that an id names; None: it cannot be an element's.

    >>> split_id("vision/sweep-17"), split_id("vision/sweep"), split_id("vision/sweep-017")
    (('vision/sweep', 17), None, None)
    """
    array, _, index = workload.rpartition("-")
    is_number = index.strip(DIGITS) == "" and index
    return (array, int(index)) if array and is_number and str(int(index)) == index else None


def count(ranges: Ranges) -> int:
    """Return the number of indexes in ranges."""
    return sum(end - begin for begin, end in ranges)


def has(ranges: Ranges, index: int) -> bool:
    """Return True if an index is in one of the ranges."""
    return any(begin <= index < end for begin, end in ranges)


def without(ranges: Ranges, indexes: Collection[int]) -> Ranges:
    """Return the ranges without some indexes.

    >>> without(((0, 5),), {0, 3})
    ((1, 3), (4, 5))
    """
    remaining: list[tuple[int, int]] = []
    for begin, end in ranges:
        for index in sorted(index for index in indexes if begin <= index < end):
            if begin < index:
                remaining.append((begin, index))
            begin = index + 1  # noqa: PLW2901  the range is cut
        if begin < end:
            remaining.append((begin, end))
    return tuple(remaining)


def first(ranges: Ranges, limit: int) -> Iterator[int]:
    """Yield the first indexes, at most `limit`."""
    for begin, end in ranges:
        yield from range(begin, min(end, begin + limit))
        limit -= end - begin
        if limit <= 0:
            return


def text(ranges: Ranges) -> str:
    """Return ranges as people write them.

    >>> text(((0, 1), (3, 10)))
    '0,3-9'
    """
    return ",".join(str(b) if e == b + 1 else f"{b}-{e - 1}" for b, e in ranges)


_FIRST_OF = (
    WorkloadState.RUNNING,
    WorkloadState.STARTING,
    WorkloadState.STOPPING,
    WorkloadState.PAUSED,
    WorkloadState.RETRYING,
    WorkloadState.QUEUED,
    WorkloadState.SUSPENDED,
    WorkloadState.FAILED,
    WorkloadState.TIMED_OUT,
    WorkloadState.SUCCEEDED,
    WorkloadState.ENDED,
)
"""State of a whole array: the first of these that any element has."""


def whole(rest: WorkloadRecord | None, elements: Collection[WorkloadRecord]) -> WorkloadRecord:
    """Return the record of a whole array, with the number of its elements by state.

    `rest` stands for the elements that have no record of their own.
    """
    records = [*elements, *([rest] if rest is not None else ())]
    states = states_of(records)
    state = next(state for state in _FIRST_OF if state in states)
    base = rest
    if base is None:
        first_element = min(elements, key=lambda record: record.spec.array_index or 0)
        size = first_element.spec.array or 1 + max(r.spec.array_index or 0 for r in elements)
        name = first_element.spec.name.rpartition("-")[0]
        spec = replace(first_element.spec, name=name, array=size, array_index=None)
        base = replace(first_element, spec=spec, reason=None, position=None, moved="")
    starts = [record.started for record in elements if record.started is not None]
    ends = [record.finished for record in elements if record.finished is not None]
    failed_codes = [r.exit_code for r in elements if r.state is WorkloadState.FAILED]
    return replace(
        base,
        state=state,
        states=states,
        workers=(),
        checkpoint_dir="",
        log_dir="",
        started=min(starts, default=None),
        finished=max(ends, default=None) if state.finished else None,
        exit_code=(next(iter(failed_codes), 0) if state.finished else None),
    )


def states_of(records: Collection[WorkloadRecord]) -> Mapping[WorkloadState, int]:
    """Return the number of workloads in each state."""
    states: dict[WorkloadState, int] = {}
    for record in records:
        states[record.state] = states.get(record.state, 0) + record.size
    return states
