"""Programs of a session use its present devices, not the ones of its server's start."""

from __future__ import annotations

import pytest

from runai.hub_service.limits.hook.runai_limits import grant

START_ENVIRONMENT = {
    "RUNAI_KIND": "session",
    "CUDA_VISIBLE_DEVICES": "GPU-1",
    "NVIDIA_VISIBLE_DEVICES": "GPU-1",
    "RUNAI_GPU_DEVICES": "GPU-1",
    "RUNAI_GPU_MEMORY_LIMITS_MIB": "8192",
    "CUDA_MPS_PIPE_DIRECTORY": "/mps/1",
    "HOME": "/home/ana",
}
OTHER_DEVICE = {
    "CUDA_VISIBLE_DEVICES": "GPU-2",
    "NVIDIA_VISIBLE_DEVICES": "GPU-2",
    "RUNAI_GPU_DEVICES": "GPU-2",
    "RUNAI_GPU_MEMORY_LIMITS_MIB": "4096",
    "HOME": "/not/taken/over",
}
NO_DEVICE = {
    "RUNAI_KIND": "session",
    "CUDA_VISIBLE_DEVICES": "",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "RUNAI_GPU_DEVICES": "",
    "HOME": "/home/ana",
}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(
            {"environment": OTHER_DEVICE},
            {"RUNAI_KIND": "session", **OTHER_DEVICE, "HOME": "/home/ana"},
            id="another device",
        ),
        pytest.param({"environment": START_ENVIRONMENT}, START_ENVIRONMENT, id="same device"),
        pytest.param({"code": "no_allocation"}, NO_DEVICE, id="queued session"),
        pytest.param(
            {"environment": {**NO_DEVICE, "RUNAI_GPU_FRACTION": "0"}},
            {**NO_DEVICE, "RUNAI_GPU_FRACTION": "0"},
            id="released device",
        ),
        pytest.param({}, START_ENVIRONMENT, id="no answer"),
        pytest.param({"code": "not_found"}, START_ENVIRONMENT, id="unknown session"),
    ],
)
def test_program_start_replaces_device_variables_by_the_answer_of_the_service(
    answer, expected, monkeypatch, capsys
):
    monkeypatch.setattr(grant, "query_service", lambda _environ, _what: answer)
    environ = dict(START_ENVIRONMENT)
    grant.renew(environ)

    assert environ == expected
    has_lost_it = not environ["RUNAI_GPU_DEVICES"]
    assert capsys.readouterr().err == (grant.NO_GPU if has_lost_it else "")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, id="program on the CPU"),
        pytest.param({"RUNAI_KIND": "job"}, id="job"),
    ],
)
def test_device_variables_of_jobs_and_cpu_programs_need_no_service_query(change, monkeypatch):
    queries = []
    monkeypatch.setattr(grant, "query_service", lambda *_: queries.append(1))
    environ = {**START_ENVIRONMENT, **change}
    grant.renew(environ)

    assert environ == {**START_ENVIRONMENT, **change}
    assert queries == []
