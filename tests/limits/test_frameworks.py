"""The hook in real PyTorch and TensorFlow, and the order of its calls without a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runai.hub_service.limits.hook.runai_limits.frameworks import cap_tensorflow, cap_torch
from runai.hub_service.limits.hook.runai_limits.share import MIB, Share

TWO_DEVICES = Share(limits_mib=(8192, 4096), devices_mib=(16384, 16384), context_mib=500)
DEVICE_BYTES = 16384 * MIB


class StubCuda:
    """A `torch.cuda` with devices; it records its calls, and runs the queued ones at init."""

    MEMORY_FRACTION = 1.0

    def __init__(self, devices: int = 2) -> None:
        self.devices = devices
        self.queue: list = []
        self.calls: list[tuple] = []

    def _lazy_call(self, call) -> None:
        self.queue.append(call)

    def initialise(self) -> None:
        for call in self.queue:
            call()

    def device_count(self) -> int:
        self.calls.append(("device_count",))
        return self.devices

    def current_device(self) -> int:
        self.calls.append(("current_device",))
        return 0

    def get_device_properties(self, index: int):
        self.calls.append(("get_device_properties", index))
        return SimpleNamespace(total_memory=DEVICE_BYTES)

    def get_per_process_memory_fraction(self, index: int) -> float:
        self.calls.append(("get_per_process_memory_fraction", index))
        return self.MEMORY_FRACTION

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        self.calls.append(("set_per_process_memory_fraction", fraction, index))

    def set_device(self, index: int) -> None:
        self.calls.append(("set_device", index))


def stub_methods() -> set[str]:
    return {name for name in vars(StubCuda) if not name.startswith("__")} - {
        "MEMORY_FRACTION",
        "initialise",
    }


# -- PyTorch -------------------------------------------------------------------------------------


def test_cap_torch_queues_one_call_and_queries_no_device():
    cuda = StubCuda()

    cap_torch(SimpleNamespace(cuda=cuda), TWO_DEVICES)

    assert cuda.calls == []
    assert len(cuda.queue) == 1


def test_cuda_initialisation_sets_the_fraction_of_each_device():
    cuda = StubCuda()
    cap_torch(SimpleNamespace(cuda=cuda), TWO_DEVICES)

    cuda.initialise()

    assert cuda.calls == [
        ("current_device",),
        ("device_count",),
        ("get_device_properties", 0),
        ("get_per_process_memory_fraction", 0),
        ("set_per_process_memory_fraction", (8192 - 500) / 16384, 0),
        ("get_device_properties", 1),
        ("get_per_process_memory_fraction", 1),
        ("set_per_process_memory_fraction", (4096 - 500) / 16384, 1),
        ("set_device", 0),
    ]


def test_tighter_torch_memory_fraction_set_by_a_program_is_not_raised():
    cuda = StubCuda(devices=1)
    cuda.MEMORY_FRACTION = 0.1
    cap_torch(SimpleNamespace(cuda=cuda), TWO_DEVICES)

    cuda.initialise()

    assert "set_per_process_memory_fraction" not in {call[0] for call in cuda.calls}


def test_torch_gets_no_memory_fraction_for_a_whole_device():
    cuda = StubCuda(devices=1)
    cap_torch(SimpleNamespace(cuda=cuda), Share((None,), (16384,), 500))

    cuda.initialise()

    assert {call[0] for call in cuda.calls} == {
        "current_device",
        "device_count",
        "get_device_properties",
        "set_device",
    }


def test_torch_program_continues_after_the_memory_hook_fails_to_query_devices(capsys, monkeypatch):
    monkeypatch.setenv("RUNAI_DEBUG", "1")
    cuda = StubCuda()
    monkeypatch.setattr(cuda, "device_count", lambda: 1 / 0)
    cap_torch(SimpleNamespace(cuda=cuda), TWO_DEVICES)

    cuda.initialise()

    assert "runai: torch: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.torch
def test_real_torch_queues_the_memory_limit_call_and_creates_no_cuda_context(
    run_python, workload_env
):
    program = f"""
import json, torch
from runai_limits.notebook import is_out_of_memory
print(json.dumps([
    torch.cuda.is_initialized(),
    [call.__module__ for call, _ in torch.cuda._queued_calls if "runai" in call.__module__],
    [name for name in {stub_methods()} if not hasattr(torch.cuda, name)],
    torch.zeros(2).sum().item(),
    is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory.")),
]))
"""

    initialised, queued_modules, missing_functions, answer, is_known = run_python(
        program, workload_env("8192", devices="16384", context=500)
    )

    assert (initialised, queued_modules, answer) == (False, ["runai_limits.frameworks"], 0.0)
    assert is_known
    # The real module has the stub's functions; older ones lack the query of the fraction.
    assert set(missing_functions) <= {"get_per_process_memory_fraction"}


# -- TensorFlow ----------------------------------------------------------------------------------

# Simulated devices in the real TensorFlow show the limits that it would set in the driver.
TENSORFLOW_ENVIRON = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
TENSORFLOW_PROGRAM = """
import json, os
import tensorflow as tf
from tensorflow.python.eager import context as c
from runai_limits.frameworks import cap_tensorflow
from runai_limits.notebook import is_out_of_memory
from runai_limits.share import Share

hooked = c.Context.ensure_initialized.__module__
error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
answer = float(tf.reduce_sum(tf.ones((3, 3))))
initialises = c.Context.ensure_initialized.__module__
limit = lambda mib: [tf.config.LogicalDeviceConfiguration(memory_limit=mib)]
choices = {
    "nothing": lambda context, gpus: None,
    "tighter": lambda context, gpus: context.set_logical_device_configuration(gpus[0], limit(100)),
    "wider": lambda context, gpus: context.set_logical_device_configuration(gpus[0], limit(16000)),
    "growth": lambda context, gpus: [context.set_memory_growth(gpu, True) for gpu in gpus],
}
limits = {}
for name, choose in choices.items():
    context = c.Context()
    context._initialize_physical_devices()
    gpus = [c.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in range(2)]
    context._physical_devices += gpus
    context._visible_device_list += gpus
    context._memory_growth_map.update(dict.fromkeys(gpus))
    choose(context, gpus)
    # The real one would now look for the devices: look at what it would tell them instead.
    seen = []
    c.Context.ensure_initialized = lambda self: seen.append(self.config.gpu_options)
    cap_tensorflow(c, Share.of(os.environ))
    context.ensure_initialized()
    context.ensure_initialized()
    first, again = (
        [list(v.memory_limit_mb) for v in options.experimental.virtual_devices] for options in seen
    )
    assert first == again
    limits[name] = first
print(json.dumps([hooked, is_out_of_memory(error), answer, initialises, limits]))
"""


@pytest.mark.tensorflow
def test_real_tensorflow_devices_are_created_with_the_memory_limits(run_python, workload_env):
    env = workload_env("8192,4096", devices="16384,16384", context=500, **TENSORFLOW_ENVIRON)

    hooked, known, answer, initialises, limits = run_python(TENSORFLOW_PROGRAM, env)

    assert (hooked, known) == ("runai_limits.frameworks", True)
    assert (answer, initialises) == (9.0, "tensorflow.python.eager.context")
    assert limits == {
        "nothing": [[7692.0], [3596.0]],  # the limits without 500 MiB of the contexts
        "tighter": [[100.0], [3596.0]],
        "wider": [[7692.0], [3596.0]],
        "growth": [[7692.0], [3596.0]],
    }


def test_tensorflow_context_of_an_unknown_version_still_initialises(monkeypatch):
    class Context:
        initialisations = 0

        def ensure_initialized(self) -> None:
            self.initialisations += 1

    module = SimpleNamespace(Context=Context)
    cap_tensorflow(module, TWO_DEVICES)
    context = Context()

    context.ensure_initialized()
    context.ensure_initialized()

    assert context.initialisations == 2
