"""The folders linked for type checkers, the packages of setup.py and the wheel are the same."""

from __future__ import annotations

import configparser
import importlib
import importlib.metadata
import json
import os
import re
import runpy
import subprocess
import zipfile

import pytest
import yaml

needs_wheel = pytest.mark.tier("test")  # the wheel is built and installed: not before each commit

IMPORT_ALL_MODULES = """
import importlib, pkgutil, pathlib, sys
packages = sys.argv[1:]
for name in packages:
    package = importlib.import_module(name)
    assert pathlib.Path(package.__file__).is_relative_to(sys.prefix), package.__file__
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


def _files(folder):
    """Return a package's files, without compat/, which belongs to packages of other names."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(p == "__pycache__" or p[0] == "." for p in path.parts[-4:])
        and "compat" not in path.relative_to(folder).parts
    ]


def test_every_source_folder_is_linked_and_declared_as_a_package(checkout, shipped, monkeypatch):
    declared = {}
    monkeypatch.chdir(checkout)
    monkeypatch.setattr("setuptools.setup", lambda **fields: declared.update(fields))
    runpy.run_path("setup.py")
    packages = {
        ".".join([package, *path.parent.relative_to(folder).parts]): path.parent
        for package, folder in shipped.items()
        for path in _files(folder)
        if path.suffix == ".py"
    }

    assert {name: checkout / at for name, at in declared["package_dir"].items()} == packages
    assert sorted(declared["packages"]) == sorted(packages)


def test_every_source_package_has_an_init_file(folders):
    missing = sorted(
        str(path.parent)
        for folder in folders.values()
        for path in _files(folder)
        if path.suffix == ".py" and not (path.parent / "__init__.py").exists()
    )

    assert missing == []


def test_runai_package_is_a_namespace_without_a_file():
    runai = importlib.import_module("runai")

    assert runai.__file__ is None


@needs_wheel
def test_wheel_contains_exactly_the_files_of_the_packages(wheel, shipped):
    expected = {
        f"{package.replace('.', '/')}/{path.relative_to(folder).as_posix()}"
        for package, folder in shipped.items()
        for path in _files(folder)
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    data = {name.partition(".data/data/")[2] for name in packed if ".data/data/" in name}

    assert {name for name in packed if ".data/data/" not in name} == expected
    assert data == {
        "etc/jupyter/jupyter_server_config.d/runai.json",
        "share/jupyter/labextensions/@jupyter-runai/lab/package.json",
        "share/jupyter/labextensions/@jupyter-runai/lab/remoteEntry.js",
    }


@pytest.mark.torch
@pytest.mark.keras
def test_every_module_of_the_wheel_imports_outside_the_checkout(installed, folders, tmp_path):
    result = subprocess.run(
        [installed, "-I", "-W", "ignore", "-c", IMPORT_ALL_MODULES, *folders],
        cwd=tmp_path,
        # TensorFlow logs to stderr on import.
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.stderr == ""
    assert result.returncode == 0


@needs_wheel
def test_installed_wheel_command_prints_its_help(installed, tmp_path):
    result = subprocess.run(
        [installed.parent / "runai", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.stderr == ""
    assert result.returncode == 0
    assert "Usage: runai" in result.stdout


@needs_wheel
def test_installed_wheel_command_schedules_a_snapshot(installed, tmp_path):
    snapshot = {
        "now": 0,
        "nodes": [{"name": "laptop", "devices": 1, "device_memory_mib": 16384}],
        "projects": [{"name": "vision", "quota": 1}],
        "workloads": [
            {"name": "a", "project": "vision", "workers": [{"name": "a-0", "gpus": 0.5}]},
        ],
    }
    result = subprocess.run(
        [installed.parent / "runai", "schedule", "-"],
        cwd=tmp_path,
        input=json.dumps(snapshot),
        capture_output=True,
        text=True,
        check=True,
    )

    (decision,) = json.loads(result.stdout)["decisions"]
    assert decision["kind"] == "start"
    assert decision["devices"] == [{"device": 0, "gpus": 0.5}]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_suite_passes_against_the_installed_wheel(installed, checkout):
    result = subprocess.run(
        [
            *(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ignore=tests/meta"),
            *("-m", "not hub and not browser and not slow"),
        ],
        cwd=checkout,
        env={name: value for name, value in os.environ.items() if name != "RUNAI_REQUIRE"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stdout[-5000:]


def test_every_package_entry_point_can_be_imported(metadata):
    declared = metadata["project"]["entry-points"] | {"console": metadata["project"]["scripts"]}
    targets = [target for group in declared.values() for target in group.values()]
    for target in targets:
        module, _, attribute = target.partition(":")

        assert hasattr(importlib.import_module(module), attribute), target


def test_package_images_chart_and_citation_have_one_version(checkout, metadata):
    chart = yaml.safe_load((checkout / "helm/Chart.yaml").read_text())
    citation = yaml.safe_load((checkout / "CITATION.cff").read_text())
    release = re.search(r"^## (\S+)", (checkout / "docs/changelog.md").read_text(), re.MULTILINE)
    pages = [*(checkout / "images").glob("*.Dockerfile"), *(checkout / "docs").rglob("*.md")]
    tags = {
        tag
        for page in pages
        for tag in re.findall(r"REGISTRY/[\w-]+(?::|, tag: \")([\w.-]+)", page.read_text())
    }

    assert release
    assert {chart["version"], chart["appVersion"], citation["version"], release[1], *tags} == {
        metadata["project"]["version"]
    }


def test_workflow_of_github_calls_the_unattended_run(checkout):
    workflow = yaml.safe_load((checkout / ".github/workflows/ci.yml").read_text())

    assert any(".ci/run" in step.get("run", "") for step in workflow["jobs"]["run"]["steps"])


def test_runai_namespace_has_a_single_distribution():
    """The original library of that name would shadow the modules that both have."""
    providers = {
        distribution.metadata["Name"]
        for distribution in importlib.metadata.distributions()
        for path in distribution.files or ()
        if path.parts[0] == "runai"
    }

    assert providers <= {"jupyter-runai"}


def test_every_dependency_has_a_reason_in_a_comment(checkout):
    lines = (checkout / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    start, end = lines.index("dependencies = ["), lines.index("[project.scripts]")
    uncommented = [line for line in lines[start:end] if line.startswith('  "') and "#" not in line]

    assert uncommented == [f'  "jupyter-runai[{extra}]",' for extra in ("service", "hub", "test")]


def test_editor_settings_and_formatter_have_the_same_line_length(checkout, metadata):
    settings = configparser.ConfigParser()
    settings.read_string("[top]\n" + (checkout / ".editorconfig").read_text(encoding="utf-8"))

    assert settings.getint("*.py", "max_line_length") == metadata["tool"]["ruff"]["line-length"]
