"""Measure an owner's wait for a GPU that an elastic or an ordinary job has borrowed.

    python benchmarks/elastic_owner_wait.py [--rounds N]     # writes benchmarks/results/

A real platform with two simulated GPUs; bob has a quota of one and trains on both with PyTorch on
the CPU: 9 million parameters and AdamW, 0.1 GB of state, or 68 million and 0.8 GB. Patty submits a
job for her own GPU; measured is the time until it runs. Elastic: one of two workers leaves and the
other continues. The baseline of the same run is the same training as one process, which ends its
update, saves a checkpoint and exits.
"""

import argparse
import json
import statistics
import sys
import time
from decimal import Decimal
from pathlib import Path

from machine import measured
from platforms import as_user, seconds_until, simulated

from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import WorkloadDetail
from runai.hub_service.wire.workload_request import SubmitRequest

RESULTS = Path(__file__).parent / "results" / "elastic_owner_wait.json"
ROUNDS = 5
WITHIN_S = 300
SETTLED_UPDATES = 3
"""Of a training before an owner comes: imports, groups and the first allocations are over."""
TRAINING = """
import os, sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
import runai.elastic.torch as elastic

torch.set_num_threads(1)
width, ranks_file = int(sys.argv[1]), sys.argv[2]
model = nn.Sequential(nn.Linear(512, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                      nn.Linear(width, 10))
elastic.init(64, 64, gpus=None if os.environ.get("WORLD_SIZE") else 1)
job = elastic.Job(model, torch.optim.AdamW(model.parameters()), checkpoint_every=10**9)
data = TensorDataset(torch.randn(4096, 512), torch.randint(10, (4096,)))
for _ in job.epochs(10**6):
    for x, y in elastic.DataLoader(data):
        job.backward(nn.functional.cross_entropy(job.model(x), y))
        job.step()
        with open(ranks_file, "a") as file:
            file.write(f"{job.ranks}\\n")
"""
OWNER = "import time; time.sleep(600)"
SMALL, LARGE = 2750, 8000
"""Widths: 9 and 68 million parameters; AdamW keeps three numbers of each."""


def job(client: Client, name: str, command: list[str], **fields: object) -> str:
    """Submit a job of this program; return its id."""
    request = SubmitRequest.model_validate(
        {"name": name, "command": [sys.executable, "-u", "-c", *command], **fields}
    )
    return client.submit(request).workloads[0].id


def wait(client: Client, workload: str, state: str) -> tuple[float, WorkloadDetail]:
    """Wait until a workload is in a state; return the seconds."""
    found = client.workload(workload)

    def is_there() -> bool:
        nonlocal found
        found = client.workload(workload)
        return found.state == state

    return seconds_until(is_there, WITHIN_S), found


def forget(client: Client, workload: str) -> None:
    """Delete a workload and wait until its GPUs are free."""
    client.delete(workload)
    seconds_until(lambda: workload not in {w.id for w in client.workloads()}, WITHIN_S)


def round_of(bob: Client, patty: Client, folder: Path, *, elastic: bool, width: int) -> float:
    """Submit patty's job while bob trains on both GPUs; return the seconds until it runs."""
    ranks_file = folder / "told"
    ranks_file.unlink(missing_ok=True)
    resources = {"elastic": True, "workers": 2} if elastic else {"gpus": Decimal(2)}
    training = job(
        bob, "training", [TRAINING, str(width), str(ranks_file)], grace_seconds=300, **resources
    )
    ranks = "2" if elastic else "1"

    def settled() -> bool:
        reported_ranks = ranks_file.read_text().split() if ranks_file.exists() else []
        return reported_ranks.count(ranks) >= SETTLED_UPDATES * int(ranks)

    seconds_until(settled, WITHIN_S)
    owner = job(patty, "owner", [OWNER], gpus=Decimal(1))
    seconds, _ = wait(patty, owner, "running")
    after = bob.workload(training).state
    if after not in ({"running"} if elastic else {"paused", "starting", "running"}):
        raise AssertionError(after)
    forget(patty, owner)
    forget(bob, training)
    return seconds


def summary(seconds: list[float]) -> dict[str, object]:
    """Return the median and the range of all rounds."""
    return {
        "median_s": round(statistics.median(seconds), 2),
        "range_s": [round(min(seconds), 2), round(max(seconds), 2)],
        "rounds": len(seconds),
    }


def main() -> None:
    """Alternate the variants, so that other load affects all of them, and save the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    environment = measured()
    variants = {
        "elastic": {"elastic": True, "width": SMALL},
        "ordinary": {"elastic": False, "width": SMALL},
        "elastic_large_state": {"elastic": True, "width": LARGE},
        "ordinary_large_state": {"elastic": False, "width": LARGE},
    }
    waits: dict[str, list[float]] = {variant: [] for variant in variants}
    with simulated(2) as (root, folder):
        bob = as_user(root, folder / "data", "bob", "vision")
        patty = as_user(root, folder / "data", "patty", "nlp")
        for number in range(rounds):
            for variant_name, how in variants.items():
                waits[variant_name].append(round_of(bob, patty, folder, **how))  # type: ignore[arg-type]
                print(
                    f"{number + 1}/{rounds} {variant_name}: {waits[variant_name][-1]:.2f} s",
                    flush=True,
                )
                time.sleep(1)
    result = {
        **environment,
        "gpu": "simulated; training on the processor, one thread a worker",
        "owner_starts": {variant: summary(seconds) for variant, seconds in waits.items()},
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
