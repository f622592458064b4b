"""Sizes of one-worker elastic workloads, and when a resize pays off (E2, E3).

Such a worker is split into its minimum and one part per GPU beyond it, so that each GPU starts and
is reclaimed like a surplus worker of an elastic gang (E1). `worker.gpus` is the request, `devices`
the allocation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import WorkerState, Workload

LINEAR = 1000
"""Gain of a GPU that adds the average throughput of the requested GPUs."""


class ElasticSizes(NamedTuple):
    """Minimum, requested and maximum number of GPUs of an elastic worker."""

    minimum: int
    requested: int
    maximum: int


def sizes_of(workload: Workload) -> ElasticSizes | None:
    """Return the sizes between which a workload is resized. None if it is not elastic (E2)."""
    if workload.gpus_min is None and workload.gpus_max is None:
        return None
    if len(workload.workers) != 1 or not workload.is_preemptible:
        return None  # Q1: a resize restarts the worker, so non-preemptible ones are never resized
    requested, remainder = divmod(workload.workers[0].gpus, WHOLE_GPU)
    if remainder or not requested:
        return None  # a fraction, or no GPU
    minimum = requested if workload.gpus_min is None else -(-workload.gpus_min // WHOLE_GPU)
    maximum = requested if workload.gpus_max is None else workload.gpus_max // WHOLE_GPU
    sizes = ElasticSizes(min(max(1, minimum), requested), requested, max(maximum, requested))
    return None if sizes.minimum == sizes.maximum else sizes


def unfold(workload: Workload, sizes: ElasticSizes) -> Workload:
    """Split the single worker into its minimum and one worker per GPU beyond it."""
    worker = workload.workers[0]
    allocated = () if worker.state is WorkerState.PENDING else tuple(sorted(set(worker.devices)))
    base = replace(
        worker, gpus=MilliGpu(sizes.minimum * WHOLE_GPU), devices=tuple(allocated[: sizes.minimum])
    )
    part = replace(worker, gpus=WHOLE_GPU, cpu_milli=0, memory_mib=Mib(0), devices=())
    holding = [replace(part, devices=(device,)) for device in allocated[sizes.minimum :]]
    missing_count = (
        0 if worker.state is WorkerState.STOPPING else sizes.maximum - sizes.minimum - len(holding)
    )
    missing = replace(part, state=WorkerState.PENDING, node=None, started=None, gone_by=None)
    return replace(workload, workers=(base, *holding, *[missing] * missing_count), min_workers=1)


def gain(workload: Workload, sizes: ElasticSizes | None, index: int) -> int:
    """Return the gain of the worker at `index`, in thousandths of a requested one's (E3).

    Without a throughput table every worker gains the same, so that E1 alone orders them.
    """
    if not workload.throughput:
        return LINEAR
    if sizes is None:
        each = max(1, workload.workers[0].gpus // WHOLE_GPU)
        requested, before, after = each * len(workload.workers), each * index, each * (index + 1)
    else:
        requested, before, after = sizes.requested, sizes.minimum + index - 1, sizes.minimum + index
    at_request = _throughput(workload.throughput, requested)
    if not at_request:
        return 0
    more = _throughput(workload.throughput, after) - _throughput(workload.throughput, before)
    return LINEAR * more * requested // (at_request * (after - before))


def repays(workload: Workload, before: int, after: int, *, started: int | None, now: int) -> bool:
    """Return True if growing from `before` to `after` GPUs pays off in the end (E3).

    The horizon is the rest of `expected_runtime`. If that is unknown, it is the time since the
    worker last started. No work is done during the `resize_cost` seconds of a restart.
    """
    slow, fast = _rate(workload, before), _rate(workload, after)
    if not workload.resize_cost:
        return fast > slow
    elapsed = 0 if started is None else max(0, now - started)
    stated = workload.expected_runtime
    horizon = elapsed if stated is None else max(0, stated - elapsed)
    return fast * (horizon - workload.resize_cost) > slow * horizon


def _rate(workload: Workload, gpus: int) -> int:
    """Return the throughput with `gpus` GPUs in thousandths; linear without a table."""
    return _throughput(workload.throughput, gpus) if workload.throughput else gpus * LINEAR


def _throughput(table: Mapping[str, int], gpus: int) -> int:
    """Return the throughput with `gpus` GPUs in thousandths, interpolated linearly.

    The line starts at 0 GPUs with 0; GPUs beyond the largest size of the table add nothing.
    """
    sizes = {size: int(size) for size in table if size.isdecimal()}
    points = sorted((number, table[size]) for size, number in sizes.items() if number)
    below = (0, 0)
    for size, value in points:
        if size >= gpus:
            width = size - below[0]
            part = (value - below[1]) * (gpus - below[0]) * LINEAR // width
            return below[1] * LINEAR + part
        below = (size, value)
    return below[1] * LINEAR
