"""The start-up hook in real interpreters: always loaded, cheap, and harmless."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from runai.hub_service.limits import HOOK

MODULES = sorted(Path(HOOK).rglob("*.py"))

PRINT_MODULES = "import json, sys; print(json.dumps(sorted(sys.modules)))"

# A stand-in for PyTorch that prints its calls.
FAKE_TORCH = """
class cuda:
    queue = []
    _lazy_call = queue.append
"""


@pytest.fixture
def env(workload_env):
    return workload_env("8192", devices="16384")


def imported_packages(module: Path) -> set[str]:
    """Return the packages that a module imports, except its siblings."""
    return {
        name.split(".")[0]
        for node in ast.walk(ast.parse(module.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }


def test_memory_limit_hook_parses_as_python_3_8():
    for module in MODULES:
        ast.parse(module.read_text(), str(module), feature_version=(3, 8))


def test_memory_limit_hook_imports_only_the_standard_library():
    names = set().union(*map(imported_packages, MODULES))

    assert names - sys.stdlib_module_names <= {"runai_limits"}


def test_memory_limit_hook_loads_only_its_own_modules_without_a_framework(run_python, env):
    with_hook = set(run_python(PRINT_MODULES, env))
    without = set(run_python(PRINT_MODULES, {**env, "PYTHONPATH": ""}))

    # .pth files of other packages may import __future__ too.
    assert with_hook - without - {"__future__"} == {
        "runai_limits",
        "runai_limits.after_import",
        "runai_limits.start",
        "sitecustomize",
    }


def test_memory_limit_hook_installs_no_import_watch_without_a_device_limit(run_python, env):
    program = "import json, sys; print(json.dumps([type(f).__name__ for f in sys.meta_path]))"

    assert "ImportWatch" in run_python(program, env)
    assert "ImportWatch" not in run_python(program, {**env, "RUNAI_GPU_MEMORY_LIMITS_MIB": ""})


def test_existing_sitecustomize_runs_beside_the_memory_limit_hook(run_python, env, tmp_path):
    user_folder = tmp_path / "mine"
    user_folder.mkdir()
    (user_folder / "sitecustomize.py").write_text("HERE = 'mine'\n")
    env["PYTHONPATH"] += f":{user_folder}"
    program = "import json, sys, sitecustomize as s; print(json.dumps([s.HERE, s.__file__]))"

    assert ["mine", str(user_folder / "sitecustomize.py")] == run_python(program, env)


def test_memory_limit_hook_of_a_second_installation_is_skipped(run_python, env, tmp_path):
    """A job that is submitted from a session has the session's path after ours."""
    other, user_folder = tmp_path / "other", tmp_path / "mine"
    shutil.copytree(HOOK, other)
    user_folder.mkdir()
    (user_folder / "sitecustomize.py").write_text("HERE = 'mine'\n")
    env["PYTHONPATH"] += f":{other}:{user_folder}"
    program = "import json, runai_limits as r, sitecustomize as s"

    result = run_python(f"{program}; print(json.dumps([s.HERE, r.__path__]))", env)
    assert result == ["mine", [str(Path(HOOK, "runai_limits"))]]


def test_failing_sitecustomize_error_is_the_same_with_the_memory_limit_hook(
    run_python, env, tmp_path
):
    user_folder = tmp_path / "mine"
    user_folder.mkdir()
    (user_folder / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    env["PYTHONPATH"] += f":{user_folder}"

    assert run_python("print(1)", env, stderr="Error in sitecustomize") == 1


def test_child_process_of_a_script_loads_the_memory_limit_hook(run_python, env):
    program = f"""
import subprocess, sys
print(subprocess.check_output([sys.executable, "-c", {PRINT_MODULES!r}], text=True))
"""

    assert "runai_limits.start" in run_python(program, env)


def test_framework_import_has_its_usual_spec_and_loader(run_python, env, tmp_path):
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    program = """
import importlib.util, json
found = importlib.util.find_spec("torch") is not None   # many only look whether it is there
import torch
print(json.dumps([
    found, len(torch.cuda.queue),
    type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__,
]))
"""

    assert run_python(program, env) == [True, 1, "SourceFileLoader", "SourceFileLoader"]


def test_import_of_a_missing_framework_raises_the_usual_error(run_python, env):
    program = """
import json
try:
    import cupy
except ModuleNotFoundError as error:
    print(json.dumps(str(error)))
"""

    assert run_python(program, env) == "No module named 'cupy'"


def test_framework_of_an_unknown_version_runs_without_a_memory_limit(run_python, env, tmp_path):
    (tmp_path / "torch.py").write_text("cuda = None\n")
    program = "import torch; print(1)"

    assert run_python(program, env, stderr="runai: torch: AttributeError") == 1
    assert run_python(program, {**env, "RUNAI_DEBUG": ""}) == 1


def test_invalid_memory_limit_is_reported_and_the_program_runs(run_python, env, tmp_path):
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    env["RUNAI_GPU_MEMORY_LIMITS_MIB"] = "much"

    assert run_python("import torch; print(1)", env, stderr="runai: torch: ValueError") == 1


def test_isolated_interpreter_does_not_load_the_memory_limit_hook(run_python, env):
    assert "runai_limits" not in run_python(PRINT_MODULES, env, options=("-I",))


def test_virtual_environment_loads_the_memory_limit_hook(tmp_path, env):
    home = tmp_path / "other"
    venv.create(home, with_pip=False)

    output = subprocess.check_output(
        [home / "bin" / "python", "-c", PRINT_MODULES], env=env, text=True
    )

    assert "runai_limits.start" in json.loads(output)
    assert "numpy" not in json.loads(output)
