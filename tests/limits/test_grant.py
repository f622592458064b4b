"""Programs of a session use its present devices, not the ones of its server's start."""

from __future__ import annotations

import pytest

from runai.hub_service.limits.hook.runai_limits import grant

HAD = {
    "RUNAI_KIND": "session",
    "CUDA_VISIBLE_DEVICES": "GPU-1",
    "NVIDIA_VISIBLE_DEVICES": "GPU-1",
    "RUNAI_GPU_DEVICES": "GPU-1",
    "RUNAI_GPU_MEMORY_LIMITS_MIB": "8192",
    "CUDA_MPS_PIPE_DIRECTORY": "/mps/1",
    "HOME": "/home/ana",
}
OTHER = {
    "CUDA_VISIBLE_DEVICES": "GPU-2",
    "NVIDIA_VISIBLE_DEVICES": "GPU-2",
    "RUNAI_GPU_DEVICES": "GPU-2",
    "RUNAI_GPU_MEMORY_LIMITS_MIB": "4096",
    "HOME": "/not/taken/over",
}
NOTHING = {
    "RUNAI_KIND": "session",
    "CUDA_VISIBLE_DEVICES": "",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "RUNAI_GPU_DEVICES": "",
    "HOME": "/home/ana",
}


@pytest.mark.parametrize(
    ("answer", "now"),
    [
        pytest.param(
            {"environment": OTHER},
            {"RUNAI_KIND": "session", **OTHER, "HOME": "/home/ana"},
            id="it was given another device since",
        ),
        pytest.param({"environment": HAD}, HAD, id="it has what it had"),
        pytest.param({"code": "no_allocation"}, NOTHING, id="it waits for its devices"),
        pytest.param(
            {"environment": {**NOTHING, "RUNAI_GPU_FRACTION": "0"}},
            {**NOTHING, "RUNAI_GPU_FRACTION": "0"},
            id="it was released",
        ),
        pytest.param({}, HAD, id="the service does not answer"),
        pytest.param({"code": "not_found"}, HAD, id="the service knows no such session"),
    ],
)
def test_program_start_replaces_device_variables_by_the_answer_of_the_service(
    answer, now, monkeypatch
):
    monkeypatch.setattr(grant, "query_service", lambda _environ, _what: answer)
    environ = dict(HAD)
    grant.renew(environ)

    assert environ == now


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, id="a program was to run on the processor"),
        pytest.param({"RUNAI_KIND": "job"}, id="a job has the same devices until it ends"),
    ],
)
def test_device_variables_of_jobs_and_cpu_programs_need_no_service_query(change, monkeypatch):
    queries = []
    monkeypatch.setattr(grant, "query_service", lambda *_: queries.append(1))
    environ = {**HAD, **change}
    grant.renew(environ)

    assert (environ, queries) == ({**HAD, **change}, [])
