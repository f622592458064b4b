"""Part 2: throughput and latency of shared devices, by load and way of sharing."""

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sharing.children import Child, ChildFailed, all_ready, together
from sharing.gpu import Gpu
from sharing.table import Row, as_percent, fairness, not_run, percentile, shares

from runai.hub_service.limits.mps_daemon import MpsDaemon, MpsUnavailable


@dataclass(frozen=True, slots=True)
class Cell:
    """A number of concurrent processes and their way of sharing."""

    name: str
    processes: int
    is_mps: bool = False
    thread_percentage: int | None = None


ALONE = Cell("alone", 1)
SLICED = (Cell("2 time-sliced", 2), Cell("4 time-sliced", 4), Cell("8 time-sliced", 8))
BY_MPS = (
    Cell("2 by MPS", 2, is_mps=True),
    Cell("2 by MPS, 50 % of threads", 2, is_mps=True, thread_percentage=50),
    Cell("4 by MPS", 4, is_mps=True),
)
LOADS = ("gemm", "copy", "small", "notebook")
UNITS = {"gemm": "TFLOP/s", "copy": "TB/s", "small": "steps/s", "notebook": "steps/s at work"}

EXPECTED: Mapping[tuple[str, str], tuple[str, float, float]] = {
    ("gemm", "2 time-sliced"): ("total 92 to 100 %", 0.92, 1.05),
    ("gemm", "2 by MPS"): ("total 97 to 103 %", 0.97, 1.05),
    ("gemm", "2 by MPS, 50 % of threads"): ("total 96 to 100 %", 0.94, 1.05),
    ("gemm", "4 by MPS"): ("total about 100 %", 0.95, 1.05),
    ("copy", "2 time-sliced"): ("total 93 to 100 %", 0.93, 1.05),
    ("copy", "2 by MPS"): ("total 97 to 103 %", 0.97, 1.05),
    ("copy", "4 by MPS"): ("total about 100 %", 0.95, 1.05),
    ("small", "2 time-sliced"): ("total 0.9 to 1.1 times", 0.9, 1.1),
    ("small", "2 by MPS"): ("total 1.5 to 1.9 times", 1.5, 2.05),
    ("small", "2 by MPS, 50 % of threads"): ("total 1.4 to 1.9 times", 1.4, 2.05),
    ("small", "4 by MPS"): ("total 2 to 3 times", 2.0, 4.1),
    ("notebook", "2 time-sliced"): ("each at least 90 %", 0.9, float("inf")),
    ("notebook", "2 by MPS"): ("each at least 95 %", 0.95, float("inf")),
    ("notebook", "4 by MPS"): ("each at least 85 %", 0.85, float("inf")),
}
"""Expected total relative to one process alone; for notebooks, the lowest of their rates."""

FAIR = 1.10


def part(gpu: Gpu, pace: float, budget_s: float) -> Iterator[Row]:
    """Measure all cells; report the cells that do not fit in the time budget as not run."""
    until = time.monotonic() + budget_s
    with ExitStack() as stack:
        try:
            daemon: MpsDaemon | None = stack.enter_context(
                MpsDaemon(gpu.device.uuid, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            )
        except MpsUnavailable as why:
            daemon = None
            yield not_run("MPS", "sharing by MPS", str(why))
        yield latency(gpu, pace)
        for load in LOADS:
            alone = 0.0
            cells = (ALONE, SLICED[0], *(BY_MPS if daemon else SLICED[1:]))
            for cell in cells:
                if time.monotonic() > until:
                    yield not_run("", f"{load}, {cell.name}", "no time left")
                    continue
                try:
                    rates, busy = measure(gpu, daemon, load, cell, pace)
                except ChildFailed as failed:
                    yield Row("", f"{load}, {cell.name}", "", str(failed), passed=False)
                    continue
                alone = rates[0] if cell is ALONE else alone
                yield judged(load, cell, rates, alone)
                if load == "gemm":
                    yield from attributed(cell, busy)
        if daemon is None:
            yield sm_active(gpu, pace)


def measure(
    gpu: Gpu, daemon: MpsDaemon | None, load: str, cell: Cell, pace: float
) -> tuple[list[float], Mapping[str, float]]:
    """Return each process's mean rate of two runs, and the busy processes by the driver."""
    seconds = max(1.0, 12 * pace)
    env = gpu.environment()
    if cell.is_mps:
        assert daemon is not None
        env |= daemon.client_environment(thread_percentage=cell.thread_percentage)
    runs = []
    busy: dict[str, float] = {}
    for _ in range(2):
        since = time.time_ns() // 1000
        children = [
            Child("rate", env, work=load, seconds=seconds, warm=max(0.2, 3 * pace))
            for _ in range(cell.processes)
        ]
        pids = {child.pid for child in children}
        runs.append([float(result["rate"]) for result in together(children, 2 * seconds + 10)])
        by_pid = gpu.busy_by_process(since)
        busy = {
            "the processes": sum(one for pid, one in by_pid.items() if pid in pids),
            "others (the MPS server)": sum(one for pid, one in by_pid.items() if pid not in pids),
        }
    return [statistics.fmean(pair) for pair in zip(*runs, strict=True)], busy


def judged(load: str, cell: Cell, rates: Sequence[float], alone: float) -> Row:
    """Compare the rates with the rate of one process alone."""
    if cell is ALONE:
        expectation = {"gemm": "an H200: 770 to 800", "copy": "an H200: about 4.3"}.get(load, "")
        return Row("", f"{load}, alone", expectation, f"{rates[0]:.4g} {UNITS[load]}")
    parts = shares(rates, alone)
    value = min(parts) if load == "notebook" else sum(parts)
    words, lowest, highest = EXPECTED.get((load, cell.name), ("", 0.0, float("inf")))
    measured = f"each {as_percent(parts)}; total {100 * sum(parts):.0f} %"
    passed: bool | None = lowest <= value <= highest if words else None
    if load != "notebook" and not cell.is_mps:
        measured += f"; greatest over smallest {fairness(rates):.2f}"
        words = f"{words}, fair within {FAIR}".removeprefix(", ")
        passed = passed is not False and fairness(rates) <= FAIR
    return Row("", f"{load}, {cell.name}", words, measured, passed)


def attributed(cell: Cell, busy: Mapping[str, float]) -> Iterator[Row]:
    """Report the busy processes by the driver: under MPS possibly the server."""
    yield Row(
        "",
        f"gemm, {cell.name}: SM % by process",
        "" if cell.is_mps else "the processes, nobody else",
        ", ".join(f"{name} {percent:.0f}" for name, percent in busy.items()),
        None if cell.is_mps else busy["others (the MPS server)"] < 5,
    )


def latency(gpu: Gpu, pace: float) -> Row:
    """Time a short kernel, alone and next to a neighbour that multiplies without a pause."""
    seconds = max(1.0, 10 * pace)
    env = gpu.environment()
    (quiet,) = together([Child("latency", env, seconds=seconds)], seconds)
    with all_ready([Child("rate", env, work="gemm", seconds=3 * seconds + 5)]) as (neighbour,):
        neighbour.resume()
        (beside,) = together([Child("latency", env, seconds=seconds)], seconds)
    figures = [
        f"{name} p50 {percentile(one['milliseconds'], 0.5):.2f} p95"
        f" {percentile(one['milliseconds'], 0.95):.2f} ms"
        for name, one in (("alone", quiet), ("time-sliced", beside))
    ]
    return Row(
        "", "latency of one short kernel", "alone about 1 ms; p95 3 to 8 ms", "; ".join(figures)
    )


def sm_active(gpu: Gpu, pace: float) -> Row:
    """Compare active cycles with the time that kernels run, for small kernels."""
    seconds = max(1.0, 10 * pace)
    env = gpu.environment()
    with all_ready([Child("rate", env, work="small", seconds=2 * seconds + 5)]) as (child,):
        child.resume()
        gpu.source.poll([])
        active = gpu.sm_active(seconds)
        device = gpu.source.poll([]).devices[gpu.device.index]
    if active is None:
        return not_run("GPM", "SM activity against utilization", "the device has no GPM")
    busy = "unknown" if device.utilization is None else f"{100 * device.utilization:.0f} %"
    return Row(
        "GPM",
        "small training: cycles with work against time with a kernel",
        "fewer cycles than time",
        f"{100 * active:.0f} % against {busy}",
    )
