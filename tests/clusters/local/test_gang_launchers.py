"""The usual ways to start a distributed training, in the workers of real gangs."""

from __future__ import annotations

import sys

import pytest

from labs import DEVICES, LocalLab, local_lab, plan, start

pytestmark = pytest.mark.torch

TRAINING = r"""
import os
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
# In one piece: the ranks of a worker share its output.
os.write(1, f"{rank} of {size} on node {os.environ.get('NODE_RANK')}\n".encode())
dist.barrier()
dist.destroy_process_group()
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SHELL_TORCHRUN = " ".join(TORCHRUN)
RENDEZVOUS_OPTIONS = (
    "--nnodes=$WORLD_SIZE --node_rank=$RANK --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT"
)
C10D = "--rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT"
TOGETHER = ["0 of 2 on node 0", "1 of 2 on node 1"]
SEPARATE = ["0 of 1 on node 0", "0 of 1 on node 1"]


async def submit(lab: LocalLab, name: str, *command: str, device: int = 0) -> str:
    spec = lab.job(name, command=command, workers=2)
    await lab.cluster.submit([spec])
    starts = (start(spec.id, device + worker, worker=worker) for worker in range(2))
    assert await lab.cluster.apply(plan(*starts)) == []
    return spec.id


async def rank_lines(lab: LocalLab, workload: str) -> list[str]:
    """Return the line of each rank, sorted, once the gang has ended."""
    record = await lab.until(workload, "succeeded", "failed")
    chunks = lab.cluster.logs(workload, worker=None, tail=None, follow=False)
    lines = b"".join([chunk.lines async for chunk in chunks]).decode().splitlines()
    assert record.state == "succeeded", lines
    return sorted(line for line in lines if " on node " in line)


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        pytest.param((sys.executable, "{train}"), TOGETHER, id="init_process_group alone"),
        pytest.param(
            (*TORCHRUN, "--nproc_per_node=2", "{train}"),
            [f"{rank} of 4 on node {rank // 2}" for rank in range(4)],
            id="torchrun with two processes in each worker",
        ),
        pytest.param(
            ("sh", "-c", f"{SHELL_TORCHRUN} {RENDEZVOUS_OPTIONS} {{train}}"),
            TOGETHER,
            id="torchrun whose arguments name the rendezvous",
        ),
        pytest.param((*TORCHRUN, "--standalone", "{train}"), SEPARATE, id="standalone torchrun"),
        pytest.param(("sh", "{script}"), SEPARATE, id="standalone torchrun in a script"),
    ],
)
async def test_gang_workers_train_together_unless_the_launch_command_says_standalone(
    command, ranks, tmp_path
):
    train, script = tmp_path / "train.py", tmp_path / "train.sh"
    train.write_text(TRAINING)
    script.write_text(f"exec {SHELL_TORCHRUN} --standalone --nnodes=1 {train}\n")
    arguments = [part.format(train=train, script=script) for part in command]
    async with local_lab(tmp_path) as lab:
        assert await rank_lines(lab, await submit(lab, "gang", *arguments)) == ranks


async def test_torchrun_with_c10d_backend_trains_one_gang_in_any_node_order(tmp_path):
    train = tmp_path / "train.py"
    train.write_text(TRAINING)
    command = ("sh", "-c", f"{SHELL_TORCHRUN} {C10D} {train}")
    async with local_lab(tmp_path) as lab:
        lines = await rank_lines(lab, await submit(lab, "gang", *command))

    # The c10d backend orders the agents by address and PID.
    assert lines in (TOGETHER, ["0 of 2 on node 1", "1 of 2 on node 0"])


async def test_concurrent_gangs_train_separately(tmp_path):
    train = tmp_path / "train.py"
    train.write_text(TRAINING)
    command = (*TORCHRUN, "--nproc_per_node=1", str(train))
    assert len(DEVICES) >= 4
    async with local_lab(tmp_path) as lab:
        gangs = [await submit(lab, name, *command, device=n) for name, n in (("a", 0), ("b", 2))]
        assert [await rank_lines(lab, gang) for gang in gangs] == [TOGETHER, TOGETHER]
