"""Part 1: the machine, memory limits (P0 to P4), and metering (P5, P6)."""

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator

from sharing.children import Child, ChildFailed, all_ready
from sharing.gpu import Gpu
from sharing.table import Row, mean_error

from runai.hub_service.agent.enforcement.memory_enforcer import MemoryEnforcer

DUTIES = (10, 25, 50, 75, 100)
LADDER_S = 15.0
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Makes PyTorch allocate every tensor through CUDA, which bypasses its own limit."""


def part(gpu: Gpu, pace: float) -> Iterator[Row]:
    """Run the experiments in sequence; `pace` scales all durations and numbers of rounds."""
    yield from probe(gpu)
    experiments: tuple[Callable[[Gpu, float], Row], ...] = (
        contexts,
        hook,
        by_environment,
        escape,
        known_duty,
        poll_cost,
    )
    for experiment in experiments:
        try:
            yield experiment(gpu, pace)
        except ChildFailed as failed:
            yield Row(experiment.__name__, experiment.__doc__ or "", "", str(failed), passed=False)


def probe(gpu: Gpu) -> Iterator[Row]:
    """Record the machine's properties."""
    for name, value in gpu.facts().items():
        yield Row("P0", name.replace("_", " "), "recorded", str(value))


def contexts(gpu: Gpu, _pace: float) -> Row:
    """The memory of one CUDA context."""
    children = [Child("context", gpu.environment()) for _ in range(3)]
    with all_ready(children) as ready:
        mib = [gpu.memory_of(child.pid) for child in ready]
    return Row(
        "P1",
        "memory of a process with one number on the device",
        "450 to 650 MiB each",
        ", ".join(f"{one} MiB" for one in mib) + f" (RUNAI_GPU_CONTEXT_MIB={max(mib)})",
        all(450 <= one <= 650 for one in mib),
    )


def hook(gpu: Gpu, pace: float) -> Row:
    """Half of the device by the start-up hook: most of it, then too much; then a neighbour."""
    limit, rounds = gpu.device.memory_mib // 2, max(1, round(20 * pace))
    most, beyond = int(limit * 0.85), int(limit * 0.2)
    env = gpu.environment(limit_mib=limit)
    passed_rounds = 0
    words = ""
    with (
        Child("hold", env, mib=f"{most},{beyond}", rounds=rounds) as one,
        Child("hold", env, mib=most, rounds=rounds) as other,
    ):
        for _ in range(rounds):
            mine, theirs = one.receive("held")["outcomes"], other.receive("held")["outcomes"]
            words = mine[1]
            passed_rounds += (
                not mine[0]
                and words.startswith("OutOfMemoryError")
                and "allowed" in words
                and gpu.memory_of(one.pid) <= limit
                and not theirs[0]
            )
            one.resume()
            other.resume()
    return Row(
        "P2",
        f"hook, limit {limit} MiB: {most}, then {beyond} MiB; a neighbour takes {most}",
        "the second refused, both within, every time",
        f"{passed_rounds} of {rounds} rounds; {words[:120]!r}",
        passed_rounds == rounds,
    )


def by_environment(gpu: Gpu, _pace: float) -> Row:
    """Limits that frameworks read from the environment."""
    half = gpu.device.memory_mib // 2
    beyond = f"{int(half * 1.3)}"
    outcomes, all_refused = [], True
    for name, words, setting in (
        ("torch", "", {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.49"}),
        (
            "jax",
            "RESOURCE_EXHAUSTED",
            {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        ),
        ("cupy", "OutOfMemoryError", {"CUPY_GPU_MEMORY_LIMIT": str(half << 20)}),
    ):
        if importlib.util.find_spec(name) is None:
            outcomes.append(f"{name}: not installed")
            continue
        env = gpu.environment() | setting
        child = (
            Child("hold", env, mib=beyond)
            if name == "torch"
            else Child("framework", env, library=name, mib=beyond)
        )
        with child:
            outcome = child.receive("held")["outcomes"][0]
        refused = bool(outcome) and words in outcome
        # Only recent PyTorch releases support it: record the result, do not judge it.
        all_refused &= refused or name == "torch"
        outcomes.append(f"{name}: {'refused' if refused else f'not refused {outcome[:80]!r}'}")
    return Row(
        "P3",
        f"limits by environment alone, half of the device: {beyond} MiB",
        "JAX and CuPy refuse; PyTorch by its release",
        "; ".join(outcomes),
        all_refused,
    )


def escape(gpu: Gpu, _pace: float) -> Row:
    """Bypass the framework's limit next to a training neighbour: the agent ends the process."""
    limit = gpu.device.memory_mib // 4
    env = gpu.environment(limit_mib=limit)
    beyond = 2 * limit
    enforcer, rungs, exited_after_s = MemoryEnforcer(), [], None
    with (
        Child("raw", env | UNCACHED, step=1024, most=beyond) as culprit,
        Child("steady", env | {"RUNAI_BENCH_SECONDS": "30"}) as neighbour,
    ):
        neighbour.receive("ready")
        culprit.receive("result")
        allocations = [
            gpu.allocation(name, child.pid, limit_mib=limit)
            for name, child in (("culprit", culprit), ("neighbour", neighbour))
        ]
        first = time.monotonic()
        while exited_after_s is None and time.monotonic() - first < LADDER_S:
            rungs += [n.rung for n in enforcer.enforce(gpu.source.poll(allocations), allocations)]
            if culprit.wait(1.0) is not None:
                exited_after_s = time.monotonic() - first
        went_on = neighbour.receive("result", 60)
    return Row(
        "P4",
        f"limit {limit} MiB, {beyond} allocated past the framework; a neighbour trains",
        "told within 3 s, gone within 10 s, the neighbour goes on",
        f"{' > '.join(rungs) or 'nothing'};"
        f" {'still there' if exited_after_s is None else f'{exited_after_s:.1f} s'};"
        f" the neighbour: {went_on['error'] or 'went on'}",
        exited_after_s is not None and exited_after_s <= 10 and not went_on["error"],
    )


def known_duty(gpu: Gpu, pace: float) -> Row:
    """The device busy for a known part of the time, as the platform's reader sees it."""
    seconds = max(3.0, 30 * pace)
    pairs, figures = [], []
    for percent in DUTIES:
        with Child("duty", gpu.environment(), percent=percent, seconds=seconds + 3) as child:
            child.receive("ready")
            child.resume()
            time.sleep(1)  # keeps the start out of the first polls
            allocation = [gpu.allocation("duty", child.pid, 1.0)]
            gpu.source.poll(allocation)
            seen = []
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(1)
                poll = gpu.source.poll(allocation)
                seen += [p.utilization for p in poll.processes if p.workload == "bench/duty"]
            known = [100 * one for one in seen if one is not None]
        measured = statistics.fmean(known) if known else float("nan")
        pairs.append((float(percent), measured))
        figures.append(f"{percent}: {measured:.1f}")
    error = mean_error(pairs)
    within = all(abs(true - seen) <= (8 if true == 10 else 5) for true, seen in pairs)
    return Row(
        "P5",
        f"SM % of a process busy for a known part, {seconds:.0f} s each, once a second",
        "each within 5 points (8 at 10 %), mean error at most 5",
        f"{', '.join(figures)}; mean error {error:.1f}",
        within and error <= 5,
    )


def poll_cost(gpu: Gpu, pace: float) -> Row:
    """One whole poll of the platform's reader."""
    children = [Child("context", gpu.environment()) for _ in range(3)]
    with all_ready(children) as ready:
        allocations = [gpu.allocation(f"p{n}", c.pid, 0.3) for n, c in enumerate(ready)]
        costs = []
        for _ in range(max(5, round(100 * pace))):
            began = time.perf_counter()
            gpu.source.poll(allocations)
            costs.append(1000 * (time.perf_counter() - began))
    median = statistics.median(costs)
    return Row(
        "P6",
        "one poll, three processes",
        "below 5 ms, at most 20",
        f"median {median:.2f} ms, worst {max(costs):.2f} ms",
        median < 20,
    )
