"""Every public name of runai 0.4.1 works, or names its replacement in one sentence."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import runai.mp
import runai.profiler
from runai.utils.replaced import Replaced

NAMES_BY_MODULE = {
    "runai.elastic": ["_init"],
    "runai.hpo": ["Status", "Strategy", "init", "pick", "report"],
    "runai.mp": ["Method", "init"],
    "runai.profiler": ["Profiler", "profile"],
    "runai.reporter": ["Reporter", "finish", "reportMetric", "reportParameter"],
    "runai.reporter.report_promethues": ["ReportType", "push", "send"],
    "runai.utils": ["Attribute", "Flock", "Hook", "attribute", "flock", "gpus", "log", "random"],
}
TORCH_NAMES_BY_MODULE = {
    "runai.elastic.torch": ["init"],
    "runai.ga.torch": ["optim"],
    "runai.ga.torch.optim": ["Optimizer", "State"],  # the optimizers: test_ga_torch.py
}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        *(pytest.param(module, names, id=module) for module, names in NAMES_BY_MODULE.items()),
        *(
            pytest.param(module, names, id=module, marks=pytest.mark.torch)
            for module, names in TORCH_NAMES_BY_MODULE.items()
        ),
    ],
)
def test_names_of_the_original_runai_library_can_be_imported(module, names):
    imported = importlib.import_module(module)

    assert [name for name in names if not hasattr(imported, name)] == []


@pytest.mark.parametrize(
    ("use", "replacement"),
    [
        pytest.param(lambda: runai.profiler.profile(10), "torch.profiler", id="profile"),
        pytest.param(lambda: runai.profiler.profile(10, "/tmp"), "TensorBoard", id="profile-dst"),
        pytest.param(lambda: runai.profiler.Profiler(None, "run", 1, "."), "jax", id="Profiler"),
        pytest.param(lambda: runai.profiler.keras, "TensorBoard", id="profiler.keras"),
        pytest.param(lambda: runai.profiler.tf, "tf.profiler", id="profiler.tf"),
        pytest.param(
            lambda: runai.mp.init(2, runai.mp.Method.Cin), "keras.distribution", id="mp.init"
        ),
        pytest.param(lambda: runai.mp.keras.layers, "fully_shard", id="mp.keras.layers"),
    ],
)
def test_removed_name_of_the_original_library_raises_an_error_with_replacement(use, replacement):
    with pytest.raises(Replaced, match="does not work any more") as refused:
        use()

    assert replacement in str(refused.value)


def test_compatibility_modules_have_no_unknown_attributes():
    for module in (runai.mp, runai.profiler, importlib.import_module("runai.elastic")):
        assert not hasattr(module, "nonsense")


def test_elastic_attribute_error_before_init_names_the_call():
    program = "import runai.elastic; runai.elastic.steps"
    failed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "call runai.elastic.torch.init(256, 64)" in failed.stderr


TORCHLESS_PROGRAM = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "keras", "tensorflow", "jax"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import runai.elastic, runai.ga, runai.reporter, runai.hpo, runai.utils, runai.mp, runai.profiler
for name in sys.argv[1:]:
    try:
        __import__(name)
    except ImportError as error:
        print(error)
"""


def test_elastic_import_without_torch_names_the_package_to_install():
    messages = subprocess.run(
        [sys.executable, "-c", TORCHLESS_PROGRAM, "runai.elastic.torch", "runai.ga.torch.optim"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()

    assert len(messages) == 2
    assert all("pip install jupyter-runai[torch]" in line for line in messages)


def test_horovod_error_names_its_replacement():
    with pytest.raises(AttributeError, match=r"torch\.distributed"):
        _ = importlib.import_module("runai.elastic").hvd


def test_original_init_divides_the_batch_among_the_gpus():
    elastic = importlib.import_module("runai.elastic")
    elastic._init(256, 64, gpus=2)

    assert (elastic.steps, elastic.gpus, elastic.batch_size) == (2, 2, 64)  # 2 * 2 * 64 = 256
    assert elastic.global_batch_size == 256
    assert elastic.master


def test_import_beside_the_original_runai_library_reports_the_conflict(tmp_path):
    # The original's __init__.py makes `runai` a regular package; ours was installed last into it.
    (tmp_path / "runai").mkdir()
    (tmp_path / "runai/__init__.py").touch()
    (tmp_path / "runai/elastic").symlink_to(importlib.import_module("runai.elastic").__path__[0])
    stderr = subprocess.run(
        [sys.executable, "-S", "-c", "import runai.elastic"],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stderr

    assert f"{tmp_path}/runai/__init__.py: another library provides `runai`" in stderr
    assert "pip uninstall runai" in stderr
