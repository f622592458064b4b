"""Measure scheduling on Kubernetes: 1,000 nodes of 8 GPUs, beside kube-scheduler in the same run.

    python benchmarks/kubernetes_scale.py [--nodes N] [--pods N] [--gangs N]

Prints, and writes benchmarks/results/kubernetes_scale.json. Each scheduler has a separate control
plane (real etcd, API server and controller manager; kwok simulates the nodes), all on this machine:

    stream    pods of one GPU each, created as fast as the API server accepts them
    gangs     Indexed Jobs of 16; ours starts each completely or not at all, kube-scheduler by pod
    backlog   pods, a fifth of the stream's number, created while the scheduler is stopped
    reclaim   (ours) a project requests 64 GPUs of its quota that another project has borrowed; once
              on a quiet cluster, and once at the moment in which the last of 400 pods is bound,
              while nodes start them and Events are written. Decided: `decide` returned, by the
              scheduler's log; told: a watch shows a victim's deletion; gone: its pod is no more

A pod is bound when a watch shows it; "submitted" is when the API server had answered its creation
(pods of Jobs: when the Job's was). Needs `tests/control_plane/build` and, for the baseline,
`tests/control_plane/build kube-scheduler`.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import quantiles
from typing import Any, Self

import psutil
from machine import measured

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from scale.contenders import OURS, THEIRS, decided, requests, running  # noqa: E402
from scale.crowd import Crowd  # noqa: E402

from control_plane.lab import installed  # noqa: E402
from control_plane.objects import add_project, job, pod  # noqa: E402
from control_plane.plane import ControlPlane  # noqa: E402
from runai.hub_service.clusters.kubernetes.client.api import Api  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "kubernetes_scale.json"
GPUS = 8
GANG = 16
CLAIM = 64
RUSH = 400
"""Pods that are bound last, at once: with more of them kwok ends the victims later."""
SETTLED = 8
"""Requests of an idle scheduler in two seconds: leases, watches."""
GOALS = {"requests_per_pod": 4, "memory_mib": 600, "reclaim_decided_s": 0.3}


class Memory:
    """Peak memory of a process during a `with` block."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = psutil.Process(process.pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.most_mib = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self.most_mib = max(self.most_mib, self._process.memory_info().rss // 2**20)

    def cpu_s(self) -> float:
        """Return the process's CPU time."""
        times = self._process.cpu_times()
        return float(times.user + times.system)


def session(scheduler: str, name: str) -> dict[str, Any]:
    """Return a non-preemptible pod of one GPU."""
    made = pod(name, 1, project="crowd", labels={"runai/kind": "build"})
    made["spec"]["schedulerName"] = scheduler
    return made


def training(scheduler: str, name: str, workers: int, *, gang: bool) -> dict[str, Any]:
    """Return a Job of workers of one GPU."""
    made = job(name, 1, workers=workers, gang=gang, project="lender")
    made["spec"]["template"]["spec"]["schedulerName"] = scheduler
    return made


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return median and 99th percentile."""
    cuts = quantiles(seconds, n=100)
    return {"p50_s": round(cuts[49], 3), "p99_s": round(cuts[98], 3)}


async def stream(crowd: Crowd, scheduler: str, pods: int) -> dict[str, float]:
    """Create pods as fast as the API server accepts them."""
    bodies = {f"pod-{n}": session(scheduler, f"pod-{n}") for n in range(pods)}
    began = time.monotonic()
    made = await crowd.make(bodies, "pods")
    await crowd.until(lambda: crowd.bound.keys() >= bodies.keys())
    last = max(crowd.bound[name] for name in bodies)
    return {
        "made_per_s": round(pods / (max(made.values()) - began), 1),
        "bound_per_s": round(pods / (last - began), 1),
        **spread([max(0.0, crowd.bound[name] - at) for name, at in made.items()]),
    }


async def gangs(crowd: Crowd, scheduler: str, count: int) -> dict[str, float]:
    """Create gangs; each counts as started when its last worker is bound."""
    bodies = {f"gang-{n}": training(scheduler, f"gang-{n}", GANG, gang=True) for n in range(count)}
    began = time.monotonic()
    made = await crowd.make(bodies, "jobs")

    def bound() -> dict[str, list[float]]:
        of: dict[str, list[float]] = {name: [] for name in bodies}
        for name, at in crowd.bound.items():
            if crowd.of_job[name] in of:
                of[crowd.of_job[name]].append(at)
        return of

    await crowd.until(lambda: all(len(workers) == GANG for workers in bound().values()))
    whole = {name: max(workers) for name, workers in bound().items()}
    return {
        "bound_per_s": round(count * GANG / (max(whole.values()) - began), 1),
        **spread([whole[name] - at for name, at in made.items()]),
    }


async def backlog(
    crowd: Crowd, scheduler: str, process: subprocess.Popen[bytes], pods: int
) -> dict[str, float]:
    """Start a scheduler with many pending pods."""
    bodies = {f"late-{n}": session(scheduler, f"late-{n}") for n in range(pods)}
    process.send_signal(signal.SIGSTOP)
    await crowd.make(bodies, "pods")
    process.send_signal(signal.SIGCONT)
    began = time.monotonic()
    await crowd.until(lambda: crowd.bound.keys() >= bodies.keys())
    return {"bound_per_s": round(pods / (max(crowd.bound[n] for n in bodies) - began), 1)}


async def borrow(crowd: Crowd, free: int) -> None:
    """Fill all free GPUs with a project that has no quota, the last 400 when the others are up."""
    last = min(free, RUSH)
    for name, count, reached in (("lent", free - last, crowd.up), ("last", last, crowd.bound)):
        if count:
            await crowd.make({name: training(OURS, name, count, gang=False)}, "jobs")
            await crowd.until(lambda: _pods_of(name, crowd, reached) >= count)  # noqa: B023


def _pods_of(job: str, crowd: Crowd, among: Mapping[str, float]) -> int:
    return sum(crowd.of_job[pod] == job for pod in among)


async def reclaim(crowd: Crowd, owner: str, log: Path) -> dict[str, float]:
    """Request a quota that another project has borrowed.

    The times of decision are the first return of `decide` with a victim, and the one with all of
    them: the owner's pods are created one after another, so there are several plans.
    """
    bodies = {f"{owner}-{n}": pod(f"{owner}-{n}", 1, project=owner) for n in range(CLAIM)}
    for body in bodies.values():
        body["metadata"]["labels"]["runai/kind"] = "build"
    began = time.monotonic()
    made = await crowd.make(bodies, "pods")
    await crowd.until(lambda: crowd.bound.keys() >= bodies.keys())
    await crowd.until(lambda: crowd.removed.keys() >= crowd.terminating.keys())
    # The scheduler's watch may be notified before ours, and the answer may precede both.
    seen = [min(crowd.seen[name], made[name]) for name in bodies]
    eviction_times = sorted(at for at in crowd.terminating.values() if at > began)
    last_removal = max(at for at in crowd.removed.values() if at > began)
    plans = [(at, kinds["stop"]) for at, kinds in decided(log) if at > began and "stop" in kinds]
    stopped = accumulate(stops for _at, stops in plans)
    enough = next(at for (at, _), n in zip(plans, stopped, strict=True) if n >= CLAIM)
    return {
        "victims": len(eviction_times),
        "plans": len(plans),
        "first_decided_after_first_seen_s": round(plans[0][0] - min(seen), 3),
        "all_decided_after_last_seen_s": round(enough - max(seen), 3),
        "first_told_after_first_seen_s": round(eviction_times[0] - min(seen), 3),
        "all_told_after_last_seen_s": round(eviction_times[-1] - max(seen), 3),
        "all_gone_after_last_seen_s": round(last_removal - max(seen), 3),
        "all_bound_after_last_seen_s": round(
            max(crowd.bound[name] for name in bodies) - max(seen), 3
        ),
    }


async def settled(plane: ControlPlane, scheduler: str) -> int:
    """Return the number of requests after all are sent: Events follow the bindings."""
    before, now = -SETTLED, 0
    while now - before >= SETTLED:
        await asyncio.sleep(2)
        before, now = now, requests(plane, scheduler)
    return now


async def measure(plane: ControlPlane, scheduler: str, size: argparse.Namespace) -> dict[str, Any]:
    """Measure one scheduler on a new control plane."""
    late = size.pods // 5
    enough = size.nodes * GPUS
    assert enough >= size.pods + late + size.gangs * GANG + 2 * CLAIM, "too few nodes"
    add_project(plane, "crowd", quota=size.pods + late + 1, buildQuota=size.pods + late + 1)
    add_project(plane, "lender", quota=0)
    for owner in ("owner", "first-owner"):
        add_project(plane, owner, quota=CLAIM, buildQuota=CLAIM)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with await Api.connect(str(plane.kubeconfig)) as api:
            crowd = Crowd(api)
            watching = asyncio.create_task(crowd.run())
            await crowd.nodes(size.nodes, GPUS)
            with running(scheduler, plane, Path(folder) / "its") as process:
                await crowd.make({"first": session(scheduler, "first")}, "pods")
                await crowd.until(lambda: "first" in crowd.bound)
                with Memory(process) as memory:
                    requests_before, cpu_s, before = (
                        requests(plane, scheduler),
                        memory.cpu_s(),
                        set(crowd.bound),
                    )
                    found["stream"] = await stream(crowd, scheduler, size.pods)
                    found["gangs"] = await gangs(crowd, scheduler, size.gangs)
                    found["backlog"] = await backlog(crowd, scheduler, process, late)
                    bound = len(crowd.bound.keys() - before)
                    found["requests_per_pod"] = round(
                        (await settled(plane, scheduler) - requests_before) / bound, 2
                    )
                    found["cpu_ms_per_pod"] = round(1000 * (memory.cpu_s() - cpu_s) / bound, 2)
                    if scheduler == OURS:
                        await borrow(crowd, enough - len(crowd.bound))
                        log = Path(folder) / "its"
                        found["reclaim_in_a_rush"] = await reclaim(crowd, "first-owner", log)
                        await settled(plane, scheduler)
                        found["reclaim"] = await reclaim(crowd, "owner", log)
                found["memory_mib"] = memory.most_mib
            watching.cancel()
    return found


def ratios(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    """Return our speed relative to kube-scheduler's; below 1 ours is slower."""
    return {
        of: round(ours[of]["bound_per_s"] / theirs[of]["bound_per_s"], 2)
        for of in ("stream", "gangs", "backlog")
    }


def main() -> None:
    """Measure both schedulers, print and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--gangs", type=int, default=100)
    parser.add_argument("--only", choices=[OURS, THEIRS])
    size = parser.parse_args()
    environment = measured()
    found = {}
    for scheduler in [size.only] if size.only else [THEIRS, OURS]:
        with installed() as plane:
            found[scheduler] = asyncio.run(measure(plane, scheduler, size))
        print(scheduler, json.dumps(found[scheduler], indent=2), flush=True)
    if size.only:
        return
    result = {
        **environment,
        "nodes": size.nodes,
        "gpus": size.nodes * GPUS,
        "pods": size.pods,
        "gangs": size.gangs,
        **found,
        "faster_than_kube_scheduler": ratios(found[OURS], found[THEIRS]),
        "goals": GOALS,
    }
    print("times as fast:", result["faster_than_kube_scheduler"])
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
