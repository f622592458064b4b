"""Part 3: limits under MPS, and the reach of a fault (M1 to M7); destructive experiments last.

Runs in the device's default compute mode; starts its own daemons and stops them.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sharing.caps import UNCACHED
from sharing.children import Child, ChildFailed, all_ready, together
from sharing.gpu import Gpu
from sharing.table import Row, as_percent, not_run, shares

from runai.hub_service.limits.memory_probe import try_limit
from runai.hub_service.limits.mps_daemon import PROGRAM, MpsDaemon, MpsUnavailable

LIMIT_MIB = 20 * 1024
STEP_MIB = 1024
NOBODY = "65534"


def part(gpu: Gpu, pace: float) -> Iterator[Row]:
    """Run the experiments in sequence, each with a new daemon."""
    if shutil.which(PROGRAM) is None:
        yield not_run("M1-6", "limits of MPS", f"{PROGRAM} is not installed")
    else:
        for experiment in (canary, pinned, looser, twice, stranger):
            with tempfile.TemporaryDirectory() as folder:
                yield from tried(experiment, gpu, pace, Path(folder))
    yield from tried(fault_sliced, gpu, pace, Path())
    if shutil.which(PROGRAM) is not None:
        with tempfile.TemporaryDirectory() as folder:
            yield from tried(fault_shared, gpu, pace, Path(folder))


def tried(
    experiment: Callable[[Gpu, float, Path], Iterator[Row]], gpu: Gpu, pace: float, folder: Path
) -> Iterator[Row]:
    """Run one experiment; an error in it becomes its result."""
    try:
        yield from experiment(gpu, pace, folder)
    except (ChildFailed, MpsUnavailable) as failed:
        yield Row("M", (experiment.__doc__ or "").strip(), "", str(failed), passed=False)


def limit_of(gpu: Gpu) -> int:
    """Return a limit that fits three times on the device."""
    return min(LIMIT_MIB, gpu.device.memory_mib // 4)


def canary(gpu: Gpu, _pace: float, folder: Path) -> Iterator[Row]:
    """The platform's own test before it advertises a limit."""
    with MpsDaemon(gpu.device.uuid, folder) as daemon:
        verdict, why = try_limit(STEP_MIB, daemon.client_environment(memory_mib=STEP_MIB))
    yield Row("M0", "canary", "refused", f"{verdict} {why}".strip(), verdict == "refused")


def pinned(gpu: Gpu, _pace: float, folder: Path) -> Iterator[Row]:
    """A client's own limit, three times."""
    limit = limit_of(gpu)
    with MpsDaemon(gpu.device.uuid, folder) as daemon:
        env = gpu.environment() | daemon.client_environment(memory_mib=limit) | UNCACHED
        children = [Child("raw", env, step=STEP_MIB, most=2 * limit) for _ in range(3)]
        results = [child.receive("result") for child in children]
        for child in children:
            child.resume()
            child.wait(10)
    got = [int(one["mib"]) for one in results]
    lowest = limit - 2 * STEP_MIB
    yield Row(
        "M1",
        f"limit {limit} MiB, allocated in steps of 1 GiB",
        "stops within the last 2 GiB of it, never beyond",
        f"{got[0]} MiB: {results[0]['refusal']}",
        lowest <= got[0] <= limit,
    )
    yield Row(
        "M2",
        "what such a client is told of the device's memory",
        "recorded: decides whether a fraction would count twice",
        f"total {results[0]['total_mib']} of {gpu.device.memory_mib} MiB",
    )
    yield Row(
        "M3",
        "three clients with the same limit",
        "each has it: the limit is per process",
        ", ".join(f"{one} MiB" for one in got),
        all(lowest <= one <= limit for one in got),
    )


def looser(gpu: Gpu, _pace: float, folder: Path) -> Iterator[Row]:
    """A client with a limit above the server's default."""
    bound = limit_of(gpu) // 2
    with MpsDaemon(gpu.device.uuid, folder) as daemon:
        daemon.limit_clients(bound)
        env = gpu.environment() | daemon.client_environment(memory_mib=2 * bound) | UNCACHED
        with Child("raw", env, step=STEP_MIB, most=3 * bound) as child:
            got = int(child.receive("result")["mib"])
    yield Row(
        "M4", f"asks for {2 * bound}, default {bound} MiB", "the default", f"{got}", got <= bound
    )


def twice(gpu: Gpu, pace: float, folder: Path) -> Iterator[Row]:
    """Two daemons on one device, a client each."""
    seconds = max(1.0, 12 * pace)
    (alone,) = together([Child("rate", gpu.environment(), work="gemm", seconds=seconds)], seconds)
    with (
        MpsDaemon(gpu.device.uuid, folder / "a") as one,
        MpsDaemon(gpu.device.uuid, folder / "b") as other,
    ):
        children = [
            Child(
                "rate",
                gpu.environment() | daemon.client_environment(),
                work="gemm",
                seconds=seconds,
            )
            for daemon in (one, other)
        ]
        rates = [float(result["rate"]) for result in together(children, seconds)]
    parts = shares(rates, float(alone["rate"]))
    yield Row("M5", "two daemons, gemm each", "both run, as if time-sliced", as_percent(parts))


def stranger(gpu: Gpu, _pace: float, folder: Path) -> Iterator[Row]:
    """A client of another account beside the first one's."""
    what = "a client of another account, no multi-user server"
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        yield not_run("M6", what, "needs root and setpriv")
        return
    with MpsDaemon(gpu.device.uuid, folder) as daemon:
        env = gpu.environment() | daemon.client_environment()
        with Child("context", env) as mine:
            mine.receive("ready")
            folder.chmod(0o755)
            prefix = ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups")
            with Child("context", env | {"HOME": "/tmp"}, prefix) as other:
                try:
                    other.receive("ready", 20)
                    seen = "ran beside it"
                except ChildFailed as waits:
                    seen = f"did not begin while the first ran ({waits})"
    yield Row("M6", what, "waits until the first account's clients have gone", seen)


def fault_sliced(gpu: Gpu, pace: float, _folder: Path) -> Iterator[Row]:
    """An assertion fails in one process beside another, time-sliced."""
    yield from faulty("time-sliced", gpu, pace, {}, "the neighbour is not touched", reaches=False)


def fault_shared(gpu: Gpu, pace: float, folder: Path) -> Iterator[Row]:
    """The same under MPS."""
    with MpsDaemon(gpu.device.uuid, folder) as daemon:
        env = dict(daemon.client_environment())
        yield from faulty("MPS", gpu, pace, env, "the neighbour ends with it", reaches=True)
        with Child("context", gpu.environment() | env) as after:
            after.receive("ready", 60)
            yield Row("M7", "a new client afterwards", "runs", "runs", passed=True)


def faulty(
    mode: str, gpu: Gpu, pace: float, extra: dict[str, str], expected: str, *, reaches: bool
) -> Iterator[Row]:
    """Fail an assertion in one process while another one trains."""
    env = gpu.environment() | extra
    with Child("steady", env | {"RUNAI_BENCH_SECONDS": str(max(2.0, 20 * pace))}) as neighbour:
        neighbour.receive("ready")
        with all_ready([Child("fault", env)]) as (culprit,):
            culprit.resume()
            own = culprit.receive("result")["error"]
        outcome = neighbour.receive("result", 60)
    yield Row(
        "M7",
        f"a failed assertion beside a training, {mode}",
        expected,
        f"{own[:60]!r}; the training: {outcome['error'][:80] or 'went on'}",
        bool(outcome["error"]) is reaches,
    )
