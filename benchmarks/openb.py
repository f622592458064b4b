"""Fill a cluster by the protocol of the FGD paper, and compare the allocated share of GPUs.

    python benchmarks/openb.py --data DIR    # prints, and writes benchmarks/results/openb.json

Alibaba's trace of 2023 (openb: 1,213 nodes with 6,212 GPUs; Weng et al., ATC'23): its pods are
shuffled, resampled with replacement up to 130 % of the GPUs and placed one at a time. Pods that fit
nowhere are dropped; placed pods never end. `frag` uses the trace's mix of requests, like FGD; ties
go to the smallest node name. Published means are over 10 seeds, ours over 5.
"""

import argparse
import csv
import gzip
import json
import os
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from machine import measured

from runai.hub_service.scheduler.model.quantity import Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import Node, Packing, Worker
from runai.hub_service.scheduler.state.frag_aware_capacity import FragAwareCapacity, capacity_for
from runai.hub_service.scheduler.state.request_shape import RequestShape, RequestShapes

RESULTS = Path(__file__).parent / "results" / "openb.json"
DATA = Path(__file__).parent.parent.parent / "shared" / "data"
ARRIVES = 1.3
"""Sum of all requests, relative to the cluster's GPUs."""
PUBLISHED: dict[Packing, str] = {"frag": "06-FGD", "binpack": "04-GpuPacking"}
"""The paper's policy compared with each of ours."""


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Read a CSV file, compressed or not."""
    packed = path.read_bytes()
    text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode()
    yield from csv.DictReader(text.splitlines())


def read_nodes(folder: Path) -> list[Node]:
    """Read the GPU nodes, sorted by name."""
    nodes = [
        Node(
            name=row["sn"],
            devices=int(row["gpu"]),
            gpu_type=row["model"],
            cpu_milli=int(row["cpu_milli"]),
            memory_mib=Mib(int(row["memory_mib"])),
        )
        for row in rows(folder / "openb_node_list_gpu_node.csv")
    ]
    return sorted(nodes, key=lambda node: node.name)


def read_pods(path: Path, kinds: RequestShapes) -> list[RequestShape]:
    """Read each pod's request."""
    return [kinds.shape_of(worker(row), ()) for row in rows(path)]


def worker(row: dict[str, str]) -> Worker:
    """Convert a row of the trace to a request."""
    gpus = int(row["num_gpu"])
    milli = int(row["gpu_milli"]) if gpus == 1 else gpus * 1000
    types = row.get("gpu_spec") or ""
    return Worker(
        name=row["name"],
        gpus=MilliGpu(milli),
        cpu_milli=int(row["cpu_milli"]),
        memory_mib=Mib(int(row["memory_mib"])),
        gpu_types=tuple(types.split("|")) if types else (),
    )


def arrivals(pods: Sequence[RequestShape], capacity: int, seed: int) -> list[RequestShape]:
    """Shuffle the pods, then resample them until the requests reach the target."""
    dice = random.Random(seed)
    order = list(pods)
    dice.shuffle(order)
    requested = sum(kind.quota for kind in order)
    while requested < ARRIVES * capacity:
        order.append(dice.choice(pods))
        requested += order[-1].quota
    return order


def allocation(
    nodes: Sequence[Node],
    kinds: RequestShapes,
    pods: Sequence[RequestShape],
    packing: Packing,
    seed: int,
) -> tuple[float, float]:
    """Fill an empty cluster; return the allocated percentage and the seconds."""
    began = time.perf_counter()
    room = capacity_for(packing, nodes)
    if isinstance(room, FragAwareCapacity):
        room.expect(Counter(pods))
    capacity = room.free_milli
    for kind in arrivals(pods, capacity, seed):
        found = room.find(kind)
        if found is not None:
            room.book(kinds.book(kind, *found))
    return 100 * (1 - room.free_milli / capacity), time.perf_counter() - began


def published(folder: Path) -> dict[tuple[str, str], float]:
    """Read the paper's allocation at 130 %: the mean over its seeds by variant and policy."""
    found = defaultdict(list)
    for row in rows(folder / "fgd_published_allocation.csv.gz"):
        found[row["workload"], row["sc_policy"]].append(float(row["130"]))
    return {key: statistics.mean(values) for key, values in found.items()}


def measure(folder: Path, seeds: Sequence[int], packings: Sequence[Packing]) -> dict[str, object]:
    """Run every available variant; return its figures compared with the paper's."""
    nodes, baselines = read_nodes(folder), published(folder)
    figures: dict[str, object] = {}
    for path in sorted(folder.glob("openb_pod_list_*.csv.gz")):
        workload = path.name.removesuffix(".csv.gz")
        kinds = RequestShapes(nodes)
        pods = read_pods(path, kinds)
        for packing in packings:
            runs = [allocation(nodes, kinds, pods, packing, seed) for seed in seeds]
            reached = [percentage for percentage, _ in runs]
            value, baseline = (
                statistics.mean(reached),
                baselines[workload, PUBLISHED[packing]],
            )
            name = f"{workload.removeprefix('openb_pod_list_')} {packing}"
            figures[name] = {
                "value": round(value, 2),
                "range": [round(min(reached), 2), round(max(reached), 2)],
                "baseline": round(baseline, 2),
                "baseline_is": PUBLISHED[packing].partition("-")[2],
                "ratio": round(value / baseline, 4),
                "seconds_a_run": round(statistics.mean(seconds for _, seconds in runs), 1),
            }
            print(name, json.dumps(figures[name]), flush=True)
    return figures


def main() -> None:
    """Run everything once and save the figures."""
    parser = argparse.ArgumentParser(description="Fill a cluster as in FGD's paper.")
    given = os.environ.get("RUNAI_DATA", str(DATA))
    parser.add_argument("--data", type=Path, default=Path(given), help="holds traces/openb")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(42, 47)))
    parser.add_argument("--packing", choices=[*PUBLISHED], nargs="+", default=[*PUBLISHED])
    options = parser.parse_args()
    folder: Path = options.data / "traces" / "openb"
    if not folder.is_dir():
        print(f"openb is left out: there is no {folder}; name the traces' folder by --data")
        return
    result = {
        **measured(),
        "what": "GPU allocation in % once 130 % have arrived; ties by smallest node name",
        "seeds": options.seeds,
        "source": "Alibaba cluster-trace-gpu-v2023; Weng et al., USENIX ATC'23",
        "figures": measure(folder, options.seeds, options.packing),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
