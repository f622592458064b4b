"""A pod on a shared GPU keeps within its memory by the same hook, configured by its binding."""

from __future__ import annotations

import os
from typing import Any

import pytest

from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import (
    DeviceRequest,
    memory_annotations,
)
from runai.hub_service.clusters.kubernetes.objects.job_manifest import PodTemplateSource, manifest
from runai.hub_service.limits import HOOK
from runai.hub_service.model.records import WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu

HALF_GPU_JOB = WorkloadSpec("vision", "half", "ana", "job", ("python", "x.py"), gpus=MilliGpu(500))
# A stand-in for PyTorch with a GPU; the hook calls it once CUDA is initialised.
FAKE_TORCH = """
from types import SimpleNamespace

class cuda:
    queue, fractions = [], []
    _lazy_call = queue.append
    current_device = lambda: 0
    device_count = lambda: 1
    set_device = lambda index: None
    get_device_properties = lambda index: SimpleNamespace(total_memory=16000 << 20)
    get_per_process_memory_fraction = lambda index: 1.0
    set_per_process_memory_fraction = lambda part, index: cuda.fractions.append([part, index])
"""
PROGRAM = """
import json
from torch import cuda
for call in cuda.queue:
    call()
print(json.dumps(cuda.fractions))
"""


def environment(spec: WorkloadSpec, annotations: dict[str, str]) -> dict[str, str]:
    """Return the environment of a container in our image, as its kubelet fills it in."""
    job_manifest = manifest(spec, PodTemplateSource("example/train"))
    variables = job_manifest["spec"]["template"]["spec"]["containers"][0]["env"]
    own = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    return {**own, "PYTHONPATH": HOOK, **{e["name"]: value_of(e, annotations) for e in variables}}


def value_of(variable: dict[str, Any], annotations: dict[str, str]) -> str:
    if "valueFrom" not in variable:
        return str(variable["value"])
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    return annotations.get(path.removeprefix("metadata.annotations['").removesuffix("']"), "")


def test_pytorch_in_a_pod_with_half_a_gpu_may_use_half_of_its_memory(run_python, tmp_path):
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    annotations = memory_annotations(DeviceRequest(milli=500), [500], 16000)

    ((fraction, device),) = run_python(PROGRAM, environment(HALF_GPU_JOB, annotations))
    assert device == 0
    assert fraction == (8000 - 500) / 16000  # without the memory of the CUDA context


def test_program_in_a_pod_gets_no_memory_limit_if_the_device_size_is_unknown(run_python, tmp_path):
    (tmp_path / "torch.py").write_text(FAKE_TORCH)

    assert run_python(PROGRAM, environment(HALF_GPU_JOB, {})) == []


@pytest.mark.parametrize(
    ("device_request", "milli", "device_mib", "limits"),
    [
        (DeviceRequest(milli=333), [333], 16000, "5328"),
        (DeviceRequest(milli=500, devices=2), [500, 500], 16000, "8000,8000"),
        (DeviceRequest(mib=4000), [250], 16000, "4000"),
        (DeviceRequest(mib=4000), [1000], 0, "4000"),
        (DeviceRequest(milli=500), [500], 0, None),
        (DeviceRequest(milli=1000, most=4), [1000], 16000, "16000"),
    ],
    ids=[
        "fraction",
        "fraction of two devices",
        "memory",
        "memory, size unknown",
        "fraction, size unknown",
        "whole device",
    ],
)
def test_pod_memory_annotations_have_the_limit_of_each_device(
    device_request, milli, device_mib, limits
):
    annotations = memory_annotations(device_request, milli, device_mib)

    assert annotations.get("runai/gpu-memory-limits-mib") == limits
