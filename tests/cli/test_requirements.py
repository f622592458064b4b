"""Missing and too old libraries are named in a sentence, by `runai`, `runai up` and the doctor."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runai import hub_service
from runai.hub_service.processes.user_environment import UserEnvironment
from user_environments import wheel

RUNAI_PROGRAM = "from runai.hub_service.cli import main; main()"
UP_ARGUMENTS = ("up", "--simulate", "1", "--data-dir", "data")


UNMET_PROGRAM = (
    "from runai.hub_service.processes.requirements import in_words, unmet_below;"
    " print(in_words(unmet_below()))"
)


@pytest.fixture
def runai(tmp_path):
    """Run `runai`, or another program, on a Python with this library before the platform's."""

    def run(
        package: Path,
        *words: str,
        program: str = f"import sys; sys.argv[0] = 'runai'; {RUNAI_PROGRAM}",
    ) -> subprocess.CompletedProcess[str]:
        environment = UserEnvironment(tmp_path)
        assert environment.prepare_as().usable
        python = str(environment.python)
        install = ["-m", "pip", "install", "-q", "--no-index", "--no-deps", str(package)]
        subprocess.run([python, *install], check=True)
        return _run(tmp_path, python, "-c", program, *words)

    return run


def _run(home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=home,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "words", [("list",), ("doctor",), UP_ARGUMENTS], ids=lambda words: words[0]
)
@pytest.mark.parametrize(
    ("name", "version"),
    [("pydantic", "1.10"), ("click", "7.0"), ("httpx", "0.1"), ("rich", "1.0")],
    ids=["pydantic", "click", "httpx", "rich"],
)
def test_outdated_client_library_is_named_with_the_pip_command(
    name, version, words, runai, tmp_path
):
    process = runai(wheel(tmp_path, name, version), *words)

    assert process.returncode == 1
    assert f"{name} {version} is too old, " in process.stdout + process.stderr
    assert f"-m pip install '{name}>=" in process.stdout + process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize("name", ["jupyterhub", "fastapi", "sqlalchemy", "psutil"])
def test_up_names_an_outdated_platform_library_before_it_starts(name, runai, tmp_path):
    process = runai(wheel(tmp_path, name, "0.1"), *UP_ARGUMENTS)

    assert process.returncode == 1
    assert f"{name} 0.1 is too old, " in process.stderr
    assert f"-m pip install '{name}>=" in process.stderr
    assert "Traceback" not in process.stderr


def test_doctor_names_a_library_that_is_too_old_but_loads(runai, tmp_path):
    process = runai(wheel(tmp_path, "numpy", "0.1"), "doctor", "-o", "json")

    report = json.loads(process.stdout)
    (finding,) = (finding for finding in report if finding["subject"] == "libraries")
    assert finding["verdict"] == "failure"
    assert finding["text"].startswith("numpy 0.1 is too old, ")


def test_missing_client_libraries_are_named_with_the_pip_command_that_installs_them(tmp_path):
    (tmp_path / "runai").symlink_to(Path(hub_service.__file__).parents[1])
    dist_info = tmp_path / "jupyter_runai-0.1.0.dist-info"
    dist_info.mkdir()
    lines = [
        *("Metadata-Version: 2.1", "Name: jupyter-runai", "Version: 0.1.0"),
        *("Requires-Dist: click>=8.2.1", "Requires-Dist: httpx>=0.27"),
        'Requires-Dist: torch>=2.8; extra == "torch"',
    ]
    (dist_info / "METADATA").write_text("\n".join(lines))
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {RUNAI_PROGRAM}"

    process = _run(tmp_path, sys.executable, "-I", "-S", "-c", program, "list")

    missing = "click is missing; httpx is missing"
    install = f"{sys.executable} -m pip install 'click>=8.2.1' 'httpx>=0.27'"
    sentence = f"The libraries of `runai` do not fit: {missing}."
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr == f"Error: {sentence}\nHint: {install}\n"


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        pytest.param("h11", "0.1", r"h11 0\.1 is too old, [\d.]+ is needed", id="older version"),
        pytest.param("h11", "99.0", "", id="newer version"),
        pytest.param("unrelated", "0.1", "", id="unrelated library"),
    ],
)
def test_outdated_transitive_library_of_the_client_is_named(
    name, version, expected, runai, tmp_path
):
    """An old httpx brings an old h11, which stays when httpx is removed."""
    result = runai(wheel(tmp_path, name.replace("-", "_"), version), program=UNMET_PROGRAM)

    assert re.fullmatch(expected, result.stdout.strip())
