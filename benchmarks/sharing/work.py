"""Loads of a single process on a device, for the experiments of `gpu_sharing.py`.

    python benchmarks/sharing/work.py rate work=gemm seconds=12 warm=3

Reports events as lines of JSON and starts at a line of input, so that several processes start
together. Needs only PyTorch. RUNAI_BENCH_DEVICE=cpu runs small sizes on a CPU, for the tests.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

DEVICE = os.environ.get("RUNAI_BENCH_DEVICE", "cuda")
IS_CUDA = DEVICE == "cuda"
MIB = 1 << 20
DUTY_PERIOD_S = 0.2
ACTIVE_S, PAUSE_S = 1.0, 4.0


class Work(NamedTuple):
    """One step of a load, its units, and the number of steps between two clock reads."""

    step: Callable[[], object]
    units: float
    together: int


def say(event: str, **facts: object) -> None:
    """Report an event to the parent."""
    print(json.dumps({"event": event, **facts}), flush=True)


def wait_for_line() -> None:
    """Wait for the parent's line."""
    sys.stdin.readline()


def sync() -> None:
    """Wait until the device has finished all queued work."""
    if IS_CUDA:
        torch.cuda.synchronize()


# ---- loads


def gemm() -> Work:
    """Multiply matrices, 8192³ in bfloat16: bound by the multipliers. Units: TFLOP."""
    size = 8192 if IS_CUDA else 128
    kind = torch.bfloat16 if IS_CUDA else torch.float32
    a, b = (torch.randn(size, size, device=DEVICE, dtype=kind) for _ in range(2))
    out = torch.empty_like(a)
    return Work(lambda: torch.mm(a, b, out=out), 2 * size**3 / 1e12, 10)


def copy() -> Work:
    """Copy 8 GiB inside the device: bound by its memory. Units: TB read and written."""
    size = 8 << 30 if IS_CUDA else 1 << 20
    a = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
    b = torch.empty_like(a)
    return Work(lambda: b.copy_(a), 2 * size / 1e12, 2)


def small() -> Work:
    """Train a small network with a batch of 32: bound by launching kernels. Units: steps."""
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 10),
    ).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(32, 784, device=DEVICE)
    y = torch.randint(0, 10, (32,), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Work(step, 1.0, 20)


LOADS = {"gemm": gemm, "copy": copy, "small": small, "notebook": small}


def run_for(work: Work, seconds: float) -> tuple[int, float]:
    """Repeat steps for some seconds; return the number of steps and the exact seconds."""
    sync()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(work.together):
            work.step()
        sync()
        steps += work.together
    return steps, time.perf_counter() - began


# ---- what the parent may ask for


def rate(work: str, seconds: str, warm: str = "3") -> None:
    """Measure a load's rate; a notebook works 1 s, rests 4 s, and only its work counts."""
    load = LOADS[work]()
    run_for(load, min(1.0, float(warm)))
    say("ready")
    wait_for_line()
    run_for(load, float(warm))
    steps, busy = 0, 0.0
    if work == "notebook":
        until = time.perf_counter() + float(seconds)
        while time.perf_counter() < until:
            done, took = run_for(load, min(ACTIVE_S, float(seconds)))
            steps, busy = steps + done, busy + took
            time.sleep(max(0.0, min(PAUSE_S, until - time.perf_counter())))
    else:
        steps, busy = run_for(load, float(seconds))
    say("result", rate=steps * load.units / busy)


def duty(percent: str, seconds: str) -> None:
    """Keep the device busy for a known part of each 200 ms."""
    load = gemm()._replace(together=1)
    run_for(load, 0.2)
    say("ready")
    wait_for_line()
    until = time.perf_counter() + float(seconds)
    while (now := time.perf_counter()) < until:
        run_for(load, DUTY_PERIOD_S * float(percent) / 100)
        time.sleep(max(0.0, now + DUTY_PERIOD_S - time.perf_counter()))
    say("result")


def latency(seconds: str) -> None:
    """Time kernels of about a millisecond, one after the other, with a rest between them."""
    load = gemm()._replace(together=1)
    run_for(load, 0.5)
    say("ready")
    wait_for_line()
    each: list[float] = []
    until = time.perf_counter() + float(seconds)
    while time.perf_counter() < until:
        each.append(_once(load))
        time.sleep(0.005)
    say("result", milliseconds=[round(1000 * one, 3) for one in each])


def _once(work: Work) -> float:
    began = time.perf_counter()
    work.step()
    sync()
    return time.perf_counter() - began


def hold(mib: str, rounds: str = "1") -> None:
    """Allocate the sizes in sequence, `rounds` times; hold the first until the parent's line."""
    sizes = [int(size) for size in mib.split(",")]
    for turn in range(int(rounds)):
        tensors: list[Any] = []
        outcomes = []
        for size in sizes:
            try:
                tensors.append(torch.empty(size * MIB, dtype=torch.uint8, device=DEVICE))
                sync()
                outcomes.append("")
            except RuntimeError as error:  # torch.OutOfMemoryError is one
                outcomes.append(f"{type(error).__name__}: {error}")
        say("held", turn=turn, outcomes=outcomes)
        wait_for_line()
        tensors.clear()
        if IS_CUDA:
            torch.cuda.empty_cache()
    say("result")


def framework(library: str, mib: str) -> None:
    """Allocate with JAX or CuPy, limited by the environment; report the outcome."""
    size, array, outcome = int(mib) * MIB, None, ""
    try:
        if library == "jax":
            import jax.numpy as jnp  # noqa: PLC0415

            array = jnp.zeros(size, jnp.uint8).block_until_ready()
        else:
            import cupy  # noqa: PLC0415

            array = cupy.zeros(size, cupy.uint8)
    except Exception as error:  # noqa: BLE001  each has errors of its own, told by name
        outcome = f"{type(error).__name__}: {error}"
    say("held", outcomes=[outcome], held=array is not None)
    wait_for_line()


def raw(step: str, most: str) -> None:
    """Allocate without PyTorch's cache, step by step, until it is refused or enough."""
    tensors, refusal = [], ""
    if IS_CUDA:
        torch.zeros(1, device=DEVICE)
    while len(tensors) * int(step) < int(most):
        try:
            tensors.append(torch.empty(int(step) * MIB, dtype=torch.uint8, device=DEVICE))
        except RuntimeError as error:
            refusal = str(error).splitlines()[0]
            break
    free, total = torch.cuda.mem_get_info() if IS_CUDA else (0, 0)
    say(
        "result",
        mib=len(tensors) * int(step),
        refusal=refusal,
        free_mib=free // MIB,
        total_mib=total // MIB,
    )
    wait_for_line()


def steady() -> None:
    """Train until told to stop; tell how far it came and what stopped it, if anything did."""
    load, error, steps = small(), "", 0
    run_for(load, 0.2)
    say("ready")
    until = time.perf_counter() + float(os.environ.get("RUNAI_BENCH_SECONDS", "30"))
    try:
        while time.perf_counter() < until:
            steps += run_for(load, 0.2)[0]
    except RuntimeError as stopped:
        error = str(stopped).splitlines()[0]
    say("result", steps=steps, error=error)


def fault() -> None:
    """Read far outside a tensor: a kernel's assertion ends this process's context."""
    x = torch.zeros(8, device=DEVICE)
    say("ready")
    wait_for_line()
    try:
        x[torch.tensor([1 << 20], device=DEVICE)].sum().item()
        error = ""
    except (RuntimeError, IndexError) as wrong:
        error = str(wrong).splitlines()[0]
    say("result", error=error)


def context() -> None:
    """Open the device and do nothing until told."""
    torch.zeros(1, device=DEVICE)
    sync()
    say("ready")
    wait_for_line()


COMMANDS = {
    f.__name__: f for f in (rate, duty, latency, hold, framework, raw, steady, fault, context)
}

if __name__ == "__main__":
    name, *words = sys.argv[1:]
    COMMANDS[name](**dict(word.split("=", 1) for word in words))
