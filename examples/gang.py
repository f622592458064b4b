"""Train on several workers that start together or not at all: a gang, with PyTorch's own DDP.

    runai submit gang --workers 2 --gpus 0.5 -- python gang.py

The platform gives every worker RANK, WORLD_SIZE and MASTER_ADDR, so `init_process_group` needs no
arguments. Each sees a part of the samples; after every step all have the same weights.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Fit a plane on all workers together; each worker prints its result."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    samples = torch.randn(256, 3)
    labels = samples @ torch.tensor([[1.0], [-2.0], [3.0]])
    mine, targets = samples[rank::size].to(device), labels[rank::size].to(device)
    model = DistributedDataParallel(nn.Linear(3, 1, bias=False).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(mine), targets).backward()
        optimizer.step()
    found = " ".join(f"{weight:.3f}" for weight in model.module.weight.flatten().tolist())
    print(f"worker {rank} of {size} found {found}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
