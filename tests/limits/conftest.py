"""Fixtures of the limits' tests.

workload_env   the environment of a Python in a workload: workload_env("512,1024", devices="...")
run_python     run a program as a workload's Python does; returns the JSON that it prints
mps_control    the fake MPS control program, as a folder on PATH
fake_cuda      the folder of the fake CUDA driver, compiled once (needs `cc`)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runai.hub_service.limits import HOOK, with_hook

HERE = Path(__file__).parent


@pytest.fixture
def workload_env() -> Callable[..., dict[str, str]]:
    def make(limits: str, *, devices: str, context: int = 0, **more: str) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
        return {
            **env,
            "RUNAI_GPU_MEMORY_LIMITS_MIB": limits,
            "RUNAI_GPU_DEVICES_MIB": devices,
            "RUNAI_GPU_CONTEXT_MIB": str(context),
            "RUNAI_DEBUG": "1",
            **more,
            "PYTHONPATH": with_hook(more.get("PYTHONPATH", "")),
        }

    return make


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., Any]:
    def run(program: str, env: dict[str, str], *, stderr: str = "", options: tuple[str, ...] = ()):
        path = tmp_path / "program.py"
        path.write_text(program)
        completed = subprocess.run(
            [sys.executable, *options, str(path)],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode == 0, completed.stderr
        assert stderr in completed.stderr
        assert stderr or "runai" not in completed.stderr, completed.stderr
        return json.loads(completed.stdout)

    return run


@pytest.fixture
def mps_control(tmp_path: Path) -> Path:
    """Make a folder of programs with the fake control program of MPS in it."""
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_mps_control.py"} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the fake CUDA driver and return its folder."""
    folder = tmp_path_factory.mktemp("cuda")
    library, source = folder / "libcuda.so.1", HERE / "fake_cuda.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return folder


@pytest.fixture
def hook_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `runai_limits` importable, as in workloads."""
    monkeypatch.syspath_prepend(HOOK)
