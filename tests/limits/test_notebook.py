"""The hint below an out-of-memory error: its text, and when there is none."""

from __future__ import annotations

import pytest

from runai.hub_service.limits.hook.runai_limits import notebook, service_query

HALF_H200 = {
    "RUNAI_GPU_MEMORY_LIMITS_MIB": "71885",
    "RUNAI_GPU_DEVICES_MIB": "143771",
    "RUNAI_GPU_CONTEXT_MIB": "500",
}


class OutOfMemoryError(RuntimeError):
    """The error's name in torch and CuPy."""


class ResourceExhaustedError(Exception):
    """The error's name in TensorFlow."""


class XlaRuntimeError(RuntimeError):
    """JAX's error, whatever the cause."""


class MyOutOfMemory(OutOfMemoryError):
    """A library's own subclass."""


ERRORS = [
    pytest.param(OutOfMemoryError("CUDA out of memory."), True, id="PyTorch or CuPy"),
    pytest.param(ResourceExhaustedError("OOM when allocating"), True, id="TensorFlow"),
    pytest.param(XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), True, id="JAX"),
    pytest.param(XlaRuntimeError("INVALID_ARGUMENT: shapes"), False, id="another error of JAX"),
    pytest.param(MyOutOfMemory(), True, id="subclass of PyTorch's error"),
    pytest.param(MemoryError(), False, id="memory of the machine"),
    pytest.param(ValueError("OutOfMemoryError"), False, id="class name in a message"),
]


@pytest.mark.parametrize(("error", "expected"), ERRORS)
def test_is_out_of_memory_recognises_errors_of_device_memory(error, expected):
    assert notebook.is_out_of_memory(error) is expected
    assert bool(notebook.line_after(error, HALF_H200)) is expected


def memory_hint(processes: list[tuple[str, int | None]], monkeypatch, **environ: str) -> str:
    answer = {"processes": [{"name": name, "memory_mib": mib} for name, mib in processes]}
    monkeypatch.setattr(notebook, "query_service", lambda _environ: answer)
    return notebook.line_after(OutOfMemoryError(), {**HALF_H200, **environ})


@pytest.mark.parametrize(
    ("processes", "line"),
    [
        pytest.param(
            [("b.ipynb", 9114), ("a.ipynb", 62464)],
            "Your session's GPU share is 70.2 GiB of 140.4; 69.9 in use by kernels"
            " a.ipynb (61.0), b.ipynb (8.9).",
            id="kernels",
        ),
        pytest.param(
            [("a.ipynb", 1024), ("a.ipynb", 1024), ("python3", None)],
            "Your session's GPU share is 70.2 GiB of 140.4; 2.0 in use by"
            " a.ipynb (2.0), python3 (0.0).",
            id="kernel with a child process, and a script",
        ),
        pytest.param(
            [], "Your session's GPU share is 70.2 GiB of 140.4.", id="no answer of the service"
        ),
    ],
)
def test_out_of_memory_hint_has_the_gpu_share_and_memory_of_each_kernel(
    monkeypatch, processes, line
):
    assert memory_hint(processes, monkeypatch) == line


def test_out_of_memory_hint_for_a_whole_gpu_names_its_full_memory(monkeypatch):
    line = memory_hint([], monkeypatch, RUNAI_GPU_MEMORY_LIMITS_MIB="143771")

    assert line == "Your session has a whole GPU of 140.4 GiB."


def test_out_of_memory_hint_outside_a_workload_is_empty():
    assert notebook.line_after(OutOfMemoryError(), {}) == ""


@pytest.mark.parametrize(
    ("notice", "line"),
    [
        pytest.param("", "", id="interrupt by the user"),
        pytest.param(
            "uses 9 GiB: it is interrupted",
            "Your session uses 9 GiB: it is interrupted.",
            id="interrupt by the platform",
        ),
        pytest.param("is within its share again", "", id="interrupt after the memory was freed"),
    ],
)
def test_interrupted_cell_hint_has_the_platforms_memory_notice(monkeypatch, notice, line):
    monkeypatch.setattr(notebook, "query_service", lambda _environ: {"notice": notice})

    assert notebook.line_after(KeyboardInterrupt(), HALF_H200) == line


def test_service_query_of_a_file_address_returns_no_answer(monkeypatch):
    monkeypatch.setenv("RUNAI_DEBUG", "1")

    environ = {"RUNAI_API_URL": "file:///etc/", "RUNAI_WORKLOAD": "vision/a"}
    assert service_query.query_service(environ) == {}
