"""`benchmarks/gpu_sharing.py` where there is no GPU: it says so, and all that is not CUDA works.

The processes are real and run PyTorch on the CPU; the device is the fake NVML library's, so the
verdicts mean nothing here, only that each experiment comes to one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_sharing.py"


@pytest.fixture
def here(tmp_path):
    """Return an environment without a driver's library."""
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is an NVIDIA GPU")
def test_without_a_gpu_it_says_not_run_and_leaves_no_figure(here, tmp_path):
    out = tmp_path / "figures.json"

    ran = subprocess.run(
        [sys.executable, SCRIPT, "--part", "1", "--out", out],
        env=here,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("not run: ")
    assert not out.exists()


@pytest.fixture(scope="session")
def fake(tmp_path_factory):
    """Return an environment with a device that exists only as a file."""
    folder = tmp_path_factory.mktemp("nvml")
    library, source = folder / "libnvidia-ml.so.1", ROOT / "tests" / "agent" / "fake_nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    (folder / "state").write_text("gpu GPU-fake 8192 192 100 50 Fake H200\n")
    return os.environ | {
        "LD_LIBRARY_PATH": str(folder),
        "FAKE_NVML_STATE": str(folder / "state"),
        "RUNAI_BENCH_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(SCRIPT.parent),
    }


PROGRAM = """
import json, sys
from sharing import caps, faults, gpu, table, throughput
device = gpu.Gpu(0)
rows = {experiment}
print(json.dumps(table.as_json(rows)))
"""


@pytest.mark.cc
@pytest.mark.torch
@pytest.mark.timeout(600)  # each process imports PyTorch
@pytest.mark.parametrize(
    ("experiment", "measured", "passed"),
    [
        pytest.param(
            "[throughput.judged('small', cell, throughput.measure(device, None, 'small', cell,"
            " 0.01)[0], 1.0) for cell in [throughput.SLICED[0]]]",
            "each ",
            None,
            id="two sharers begin together and each tells its rate",
        ),
        pytest.param(
            "[caps.hook(device, 0.05)]",
            "0 of 1 rounds; ''",
            False,
            id="a limit that nothing keeps is not called kept",
        ),
        pytest.param(
            "list(faults.fault_sliced(device, 0.1, None))",
            "'index 1048576 is out of bounds for dimension 0 with size 8'; the training: went on",
            True,
            id="a fault is not a neighbour's",
        ),
    ],
)
def test_an_experiment_comes_to_its_end(fake, experiment, measured, passed):
    program = PROGRAM.format(experiment=experiment)

    ran = subprocess.run(
        [sys.executable, "-c", program], env=fake, capture_output=True, text=True, check=False
    )

    assert ran.stderr == ""
    (row,) = json.loads(ran.stdout)
    assert row["measured"].startswith(measured)
    assert passed is None or row["passed"] is passed
