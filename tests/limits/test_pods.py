"""A pod that shares a GPU keeps within its memory by the same hook, told by its binding."""

from __future__ import annotations

import os
from typing import Any

import pytest

from runai.hub_service.clusters.kubernetes.fractions import Part, told_of_memory
from runai.hub_service.clusters.kubernetes.making import Surroundings, manifest
from runai.hub_service.clusters.records import WorkloadSpec
from runai.hub_service.limits.path import HOOK
from runai.hub_service.scheduler.quantity import MilliGpu

HALF = WorkloadSpec("vision", "half", "ana", "job", ("python", "x.py"), gpus=MilliGpu(500))
# Stands for a GPU under PyTorch, which asks it when it initialises CUDA.
PROGRAM = """
import json, types, torch
asked = []
cuda = torch.cuda
cuda.current_device = lambda: 0
cuda.device_count = lambda: 1
cuda.set_device = lambda index: None
cuda.get_device_properties = lambda index: types.SimpleNamespace(total_memory=16000 << 20)
cuda.get_per_process_memory_fraction = lambda index: 1.0
cuda.set_per_process_memory_fraction = lambda part, index: asked.append([part, index])
for call, *_ in cuda._queued_calls:  # PyTorch's own ask for a real one
    if call.__module__.startswith("runai_limits"):
        call()
print(json.dumps(asked))
"""


def environment(spec: WorkloadSpec, notes: dict[str, str]) -> dict[str, str]:
    """Return what a container's program has, as its kubelet fills it in, in our image."""
    made = manifest(spec, Surroundings("example/train"))
    variables = made["spec"]["template"]["spec"]["containers"][0]["env"]
    own = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    return {**own, "PYTHONPATH": HOOK, **{e["name"]: filled(e, notes) for e in variables}}


def filled(variable: dict[str, Any], notes: dict[str, str]) -> str:
    if "valueFrom" not in variable:
        return str(variable["value"])
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    return notes.get(path.removeprefix("metadata.annotations['").removesuffix("']"), "")


@pytest.mark.torch
def test_pytorch_in_a_pod_with_half_a_gpu_may_use_half_of_its_memory(run_python):
    notes = told_of_memory(Part(milli=500), [500], 16000)

    ((part, device),) = run_python(PROGRAM, environment(HALF, notes))
    assert device == 0
    assert part == (8000 - 500) / 16000


@pytest.mark.torch
@pytest.mark.parametrize(
    ("spec", "notes"),
    [
        (HALF, {}),
        (
            WorkloadSpec(
                *("vision", "one", "ana", "job", ("python",)),
                elastic=True,
                gpus=MilliGpu(1000),
                gpus_max=MilliGpu(4000),
            ),
            told_of_memory(Part(milli=1000, most=4), [1000], 16000),
        ),
    ],
    ids=["nobody knows how large the device is", "whole devices"],
)
def test_nothing_is_limited_where_there_is_no_limit(run_python, spec, notes):
    assert run_python(PROGRAM, environment(spec, notes)) == []


@pytest.mark.parametrize(
    ("part", "milli", "device_mib", "limits"),
    [
        (Part(milli=333), [333], 16000, "5328"),
        (Part(milli=500, devices=2), [500, 500], 16000, "8000,8000"),
        (Part(mib=4000), [250], 16000, "4000"),
        (Part(mib=4000), [1000], 0, "4000"),
        (Part(milli=500), [500], 0, None),
    ],
    ids=[
        "a fraction",
        "of two devices",
        "memory",
        "memory, size unknown",
        "fraction, size unknown",
    ],
)
def test_the_binding_says_how_much_of_each_device(part, milli, device_mib, limits):
    assert told_of_memory(part, milli, device_mib).get("runai/gpu-memory-limits-mib") == limits
