"""Scripts from the original library's documentation run unchanged, with correct results."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")

ELASTIC_SCRIPT = """
import torch

import runai.elastic.torch
import runai.ga.torch

runai.elastic.torch.init(global_batch_size={global_batch}, max_gpu_batch_size=64{gpus})

torch.manual_seed(1)
x, y = torch.randn(512, 6, dtype=torch.float64), torch.randn(512, 1, dtype=torch.float64)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x, y), batch_size=runai.elastic.batch_size
)
model = torch.nn.Linear(6, 1, dtype=torch.float64)
model = torch.nn.DataParallel(model)

optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
if runai.elastic.steps > 1:
    optimizer = runai.ga.torch.optim.Optimizer(optimizer, runai.elastic.steps)

for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()

if runai.elastic.master:
    print(runai.elastic.steps, *model.state_dict()["module.weight"].flatten().tolist())
"""

ACCUMULATION_SCRIPT = """
import torch
import runai.ga.torch.optim

torch.manual_seed(1)
x, y = torch.randn(512, 6, dtype=torch.float64), torch.randn(512, 1, dtype=torch.float64)
model = torch.nn.Linear(6, 1, dtype=torch.float64)
optimizer = runai.ga.torch.optim.Adam(4, model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, targets in zip(x.split(64), y.split(64)):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
print(4, *model.weight.flatten().tolist())
"""


def run_script(script):
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    steps, *weights = process.stdout.split()
    return int(steps), [float(weight) for weight in weights], process.stderr


@pytest.fixture(scope="module")
def whole_batch_weights():
    """Return the weights of the same training with batches of 256 samples."""
    torch.manual_seed(1)
    x, y = torch.randn(512, 6, dtype=torch.float64), torch.randn(512, 1, dtype=torch.float64)
    model = torch.nn.Linear(6, 1, dtype=torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        for inputs, targets in zip(x.split(256), y.split(256), strict=True):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    return model.weight.flatten().tolist()


@pytest.mark.parametrize(
    ("script", "steps"),
    [
        pytest.param(ELASTIC_SCRIPT.format(global_batch=256, gpus=""), 4, id="elastic"),
        pytest.param(ACCUMULATION_SCRIPT, 4, id="accumulation"),
    ],
)
def test_script_of_the_original_documentation_trains_the_whole_batch_weights(
    script, steps, whole_batch_weights
):
    printed_steps, weights, errors = run_script(script)

    assert steps == printed_steps
    assert pytest.approx(whole_batch_weights, abs=1e-12) == weights
    assert errors.count("the mean of its micro-batches' gradients") == 1


def test_several_gpus_in_a_process_log_the_required_batch_size():
    _, _, errors = run_script(ELASTIC_SCRIPT.format(global_batch=256, gpus=", gpus=4"))

    assert "let it yield 256 samples" in errors


def test_elastic_job_unwraps_an_accumulating_optimizer():
    from runai.elastic.torch import Job
    from runai.ga.torch import optim

    model = torch.nn.Linear(2, 1)
    optimizer = optim.SGD(4, model.parameters(), reduction="mean")
    Job(model, optimizer, global_batch=8, gpu_batch=2)

    assert torch.optim.SGD is type(optimizer)
