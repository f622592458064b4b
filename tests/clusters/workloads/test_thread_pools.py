"""Threads of programs that start several processes, with a worker's CPUs in the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from runai.hub_service.clusters.workloads.worker_environment import cpu_variables
from runai.hub_service.model.records import WorkloadSpec
from runai.hub_service.processes.shell_environment import CPU_VARIABLES

SPEC = WorkloadSpec("vision", "exp", "ana", "job", ("true",))
JOBLIB = """
import os, sys
from joblib import Parallel, delayed, effective_n_jobs
jobs = int(sys.argv[1])
(threads,) = Parallel(n_jobs=jobs)([delayed(os.getenv)("OMP_NUM_THREADS")])
print(effective_n_jobs(jobs) * int(threads or os.cpu_count()))
"""
TORCHRUN = ("-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc_per_node=2")


def threads(variables: Mapping[str, str], *program: str) -> int:
    """Return the threads of all processes of a program together."""
    inherited = {name: value for name, value in os.environ.items() if name not in CPU_VARIABLES}
    result = subprocess.run(
        [sys.executable, *program],
        env=inherited | dict(variables),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return sum(int(line) for line in result.stdout.split())


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(("-c", JOBLIB, "2"), id="joblib with two processes"),
        pytest.param(("-c", JOBLIB, "-1"), id="joblib with as many as there are"),
        pytest.param(
            (*TORCHRUN, "sh", "-c", "echo $OMP_NUM_THREADS"),
            marks=pytest.mark.torch,
            id="torchrun",
        ),
    ],
)
def test_cpu_request_never_raises_the_thread_count_of_multiprocess_programs(program):
    if "joblib" in program[1]:
        pytest.importorskip("joblib")
    usual = threads({}, *program)

    for milli in (1000, 4000):
        assert 0 < threads(cpu_variables(SPEC, milli), *program) <= usual
