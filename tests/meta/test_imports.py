"""The direction of dependencies between packages, and the libraries that an import may load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

# The core only computes, with data types, ordering and arithmetic of the standard library.
PURE_MODULES = {
    "__future__",
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "re",
    "runai",
    "types",
    "typing",
}

# Modules of the service that spawner and widgets may import.
CLIENT_MODULES = {
    "runai.hub_service.wire.base_schema",
    "runai.hub_service.wire.device_schemas",
    "runai.hub_service.wire.schemas",
    "runai.hub_service.wire.program_schemas",
    "runai.hub_service.wire.validation",
    "runai.hub_service.client.array_lines",
    "runai.hub_service.client.log_lines",
    "runai.hub_service.client.notebook_program",
    "runai.hub_service.client.calls",
    "runai.hub_service.client.request_options",
    "runai.hub_service.wire.explanation_schemas",
    "runai.hub_service.wire.workload_request",
    "runai.hub_service.client",
    "runai.hub_service.client.client",
    "runai.hub_service.client.connection",
    "runai.hub_service.wire.elastic_messages",
    "runai.hub_service.wire.errors",
    "runai.hub_service.processes.accounts",
    "runai.hub_service.processes.accounts.account_directory",
    "runai.hub_service.processes.accounts.account_states",
    "runai.hub_service.processes.accounts.known_accounts",
    "runai.hub_service.processes.accounts.lookup_program",
    "runai.hub_service.processes.accounts.account_limits",
    "runai.hub_service.processes.accounts.programs",
    "runai.hub_service.processes.accounts.state_program",
    "runai.hub_service.processes.per_process",
    "runai.hub_service.processes.program_files",
    "runai.hub_service.processes.folder_lock",
    "runai.hub_service.processes.path_faults",
    "runai.hub_service.processes.session_end",
    "runai.hub_service.processes.shell_environment",
    "runai.hub_service.processes.requirements",
    "runai.hub_service.processes.tmp_dirs",
    "runai.hub_service.processes.accounts.home_folder",
    "runai.hub_service.processes.accounts.submission_environment",
    "runai.hub_service.processes.accounts.umask",
    "runai.hub_service.processes.user_account",
    "runai.hub_service.processes.user_environment",
    "runai.hub_service.wire.amounts",
    "runai.hub_service.limits.tiers",
    "runai.hub_service.wire.printable",
    "runai.hub_service.wire.problems",
    "runai.hub_service.client.worker_client",
    "runai.hub_service.client.actions",
    "runai.reporter.pushing",  # a notebook's progress, reported as any program reports its own
}

SERVICE_LIBRARIES = (
    *("aiohttp", "alembic", "fastapi", "jupyterhub", "psutil", "pynvml", "sqlalchemy", "uvicorn"),
    "yaml",
)

# Import the module, print the named packages that were loaded with it.
PRINT_LOADED_PACKAGES = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*sorted(set(sys.argv[2:]) & {name.partition(".")[0] for name in sys.modules}))
"""

# Simulate an extra that is not installed.
BLOCK_MODULES = """
import runpy, sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
sys.argv = sys.argv[2:]
"""


def _imported(folder):
    """Return {file: modules it imports}; `from runai.x import y` counts as runai.x."""
    return {
        str(path): {
            name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
        }
        for path in folder.rglob("*.py")
    }


def test_scheduler_imports_only_pure_standard_library_modules(folders):
    impure = {
        path: sorted(packages - PURE_MODULES)
        for path, names in _imported(folders["runai.hub_service"] / "scheduler").items()
        if not path.endswith("__main__.py")  # reads files and prints
        and not (packages := {name.partition(".")[0] for name in names}) <= PURE_MODULES
    }

    assert impure == {}


@pytest.mark.parametrize("leaf", ["elastic", "spawner", "widgets"])
def test_leaf_package_imports_only_the_service_client(folders, leaf):
    # A folder may have packages of other names: elastic/compat/ga is runai.ga.
    own_packages = tuple(
        name
        for name, folder in folders.items()
        if folder.resolve().is_relative_to(folders[f"runai.{leaf}"].resolve())
    )
    imported = {
        name
        for names in _imported(folders[f"runai.{leaf}"]).values()
        for name in names
        if name.startswith("runai.") and not name.startswith(own_packages)
    }

    assert imported <= CLIENT_MODULES


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        pytest.param(
            "runai.hub_service.scheduler",
            ["asyncio", "fastapi", "httpx", "logging", "pydantic", "sqlalchemy", "starlette"],
            id="scheduler-without-frameworks",
        ),
        pytest.param(
            "runai.hub_service.client.client", SERVICE_LIBRARIES, id="client-without-service"
        ),
        pytest.param("runai.hub_service.cli", SERVICE_LIBRARIES, id="cli-without-service"),
        pytest.param("runai.widgets", ["torch", *SERVICE_LIBRARIES], id="widgets-without-service"),
        pytest.param(
            "runai.elastic",
            ["httpx", "keras", "pydantic", "tensorflow", "torch", *SERVICE_LIBRARIES],
            id="elastic-without-frameworks",
        ),
    ],
)
def test_module_import_loads_no_unneeded_libraries(module, unwanted):
    result = subprocess.run(
        [sys.executable, "-c", PRINT_LOADED_PACKAGES, module, *unwanted],
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stdout.split() == []


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [(["--help"], 0), (["doctor", "--data-dir", "."], 1)],  # fails: no platform is known
    ids=["help", "doctor"],
)
def test_cli_runs_without_the_hub_extra(tmp_path, arguments, exit_code):
    program = BLOCK_MODULES + "from runai.hub_service.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, ",".join(SERVICE_LIBRARIES), "runai", *arguments],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.stderr == ""
    assert result.returncode == exit_code


def test_runai_up_without_the_hub_extra_names_the_package_to_install(tmp_path):
    program = BLOCK_MODULES + "from runai.hub_service.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, ",".join(SERVICE_LIBRARIES), "runai", "up"],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 1
    assert result.stderr.endswith("Hint: pip install 'jupyter-runai[hub]'\n")
