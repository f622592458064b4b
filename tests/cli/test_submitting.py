"""`runai submit` against a running service: the request, and the printed answer.

Tests of a submission's rules: tests/service/api/test_bad_input.py and tests/contract.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import overviews
from runai.hub_service.cli.commands import submit
from runai.hub_service.client.texts import dry_run_outcome
from runai.hub_service.processes.user_account import UnixAccount
from runai.hub_service.wire.program_schemas import EnvironmentNote

PYTHON = sys.executable
RUNAI = (PYTHON, "-m", "runai.hub_service.cli")


def test_submitted_job_is_acknowledged_and_runs_until_it_succeeds(bob, eventually):
    program = "import os; print(os.environ['A'], os.environ['RUNAI_PROJECT'])"
    result = bob("submit", "exp1", "-g", "0.5", "-e", "A=b=c", "--", PYTHON, "-c", program)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("job vision/exp1 submitted: ")
    eventually(lambda: bob.describe("exp1")["state"] == "succeeded")
    assert bob("logs", "exp1").stdout == "b=c vision\n"


@pytest.mark.parametrize(
    ("options", "message", "expected"),
    [
        pytest.param(
            [
                *("-g", "2", "-p", "vision", "--priority", "high", "--workdir", "work"),
                *(
                    "--expected-runtime",
                    "2h",
                    "--time",
                    "3h",
                    "--backoff-limit",
                    "3",
                    "--grace",
                    "2m",
                ),
            ],
            "job vision/exp1 submitted: ",
            {
                "gpus": 2,
                "command": ["sleep", "600"],
                "workdir": "{folder}/work",
                "backoff_limit": 3,
                "grace_seconds": 120,
                "expected_runtime": 7200,
                "max_runtime": 10800,
                "priority": 75,  # high
                "kind": "job",
                "preemptible": True,
                "user": "bob",
            },
            id="job",
        ),
        pytest.param(
            ["--gpu-memory", "4G"],
            "job vision/exp1 submitted: ",
            {"gpu_memory_mib": 4096},
            id="memory instead of GPUs",
        ),
        pytest.param(
            ["-g", "0.5", "--interactive"],
            "session vision/exp1 submitted: ",
            {"kind": "session", "preemptible": False},
            id="session",
        ),
        pytest.param(
            ["--elastic", "--workers", "3", "--min-workers", "2"],
            "job vision/exp1 submitted: ",
            {"min_workers": 2},
            id="elastic job",
        ),
        pytest.param(
            ["--elastic", "--workers", "3", "--guaranteed-workers", "2"],
            "job vision/exp1 submitted: ",
            {"guaranteed_workers": 2},
            id="elastic job with guaranteed workers",
        ),
        pytest.param(
            ["--cpu", "0.5", "--memory", "2G"],
            "job vision/exp1 submitted: ",
            {"cpu": 0.5, "memory_mib": 2048},
            id="CPUs and memory",
        ),
        pytest.param(
            ["-g", "0.5", "--saves"],
            "job vision/exp1 submitted: ",
            {"saves": True},
            id="job that saves",
        ),
    ],
)
def test_submit_sends_the_requested_options_to_the_service(
    bob, tmp_path, options, message, expected
):
    (tmp_path / "work").mkdir()

    result = bob("submit", "exp1", *options, "--", "sleep", "600")

    assert result.stdout.startswith(message)
    job = bob.describe("exp1")
    assert {name: (job | job["options"])[name] for name in expected} == {
        name: value.format(folder=tmp_path) if isinstance(value, str) else value
        for name, value in expected.items()
    }


def test_code_version_of_a_job_is_recorded_at_submission_and_start(bob, tmp_path, eventually):
    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("c" * 40)

    bob("submit", "exp1", "--", PYTHON, "train.py", "--out", "new.json")

    eventually(lambda: bob.describe("exp1")["code_started"])
    job = bob.describe("exp1")
    assert job["code"] == job["code_started"]
    assert job["code"]["commit"] == "c" * 40
    digest = hashlib.sha256((tmp_path / "train.py").read_bytes()).hexdigest()
    assert job["code"]["files"] == {"train.py": digest}


class AccountsOfThisProcess:
    """An account directory in which every user has the uid of this process."""

    async def account(self, user):
        return UnixAccount(user, Path("/"), os.geteuid())


@pytest.fixture
def bobs_umask(service):
    """The umask 027 of bob, whose account this process has, where users have accounts."""
    service.platform.accounts = AccountsOfThisProcess()
    former_umask = os.umask(0o027)
    yield "027"
    os.umask(former_umask)


def test_job_and_exec_have_the_umask_of_the_submission(bob, bobs_umask, eventually):
    bob("submit", "exp1", "--", "sh", "-c", "umask; sleep 1000")
    eventually(lambda: bob("logs", "exp1").stdout == f"0{bobs_umask}\n")
    os.umask(0o022)

    process = subprocess.run(
        [*RUNAI, "exec", "exp1", "--", "sh", "-c", "umask"],
        env=os.environ | bob.environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert process.stdout == f"0{bobs_umask}\n"
    assert re.search(rf"^Umask: +{bobs_umask}$", bob("describe", "exp1").stdout, re.MULTILINE)


def test_submission_with_a_umask_that_takes_the_owners_rights_is_refused(bob, bobs_umask):
    os.umask(0o277)
    try:
        refused = bob("submit", "exp1", "--", "true")
    finally:
        os.umask(0o022)

    assert refused.exit_code == 1
    assert "Your umask is 0277" in refused.stderr
    assert "umask 022" in refused.stderr


def test_submission_umask_is_ignored_without_user_accounts(bob, bobs_umask, service, eventually):
    service.platform.accounts = None

    bob("submit", "exp1", "--wait", "--", "sh", "-c", "umask")

    assert bob("logs", "exp1").stdout == "0022\n"
    assert bob.describe("exp1")["umask"] == ""


def test_array_submission_runs_a_job_for_each_index(bob, eventually):
    program = "import os; print(os.environ['RUNAI_ARRAY_INDEX'])"

    result = bob("submit", "sweep", "--array", "3", "--wait", "--", PYTHON, "-c", program)

    assert result.exit_code == 0
    assert [bob("logs", f"sweep-{i}").stdout for i in range(3)] == ["0\n", "1\n", "2\n"]


def test_describe_prints_reported_metrics_while_a_job_runs_and_after(bob, eventually):
    report = """if True:
        import pathlib, time
        from runai.reporter import Reporter
        with Reporter() as reporter:
            for name, value in [("epoch", 3), ("overall_epochs", 10), ("loss", 0.25)]:
                reporter.reportMetric(name, value)
            reporter.reportParameter("optimizer", "Adam")
        while not pathlib.Path("go").exists():
            time.sleep(0.02)
    """
    bob("submit", "exp1", "-g", "1", "--", PYTHON, "-c", report)

    def is_reported() -> bool:  # the metrics arrive one after the other
        progress = bob.describe("exp1")["progress"]
        return bool(progress) and progress["done"] == 0.3

    eventually(is_reported, within=60)
    Path("go").touch()
    eventually(lambda: bob.describe("exp1")["state"] == "succeeded", within=60)
    lines = [line.split(maxsplit=1) for line in bob("describe", "exp1").stdout.splitlines()]
    assert ["Progress:", "3 of 10 epochs · loss 0.25"] in lines
    assert ["Reported:", "epoch 3, overall_epochs 10, loss 0.25, optimizer Adam"] in lines


NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 4,
    "metadata": {},
    "cells": [
        {
            "cell_type": "code",
            "source": "rate = 1",
            "metadata": {"tags": ["parameters"]},
            "outputs": [],
            "execution_count": None,
        }
    ],
}


def test_submitted_notebook_leaves_its_executed_copy_beside_it(bob, tmp_path):
    (tmp_path / "study.ipynb").write_text(json.dumps(NOTEBOOK))

    refused = bob("submit", "exp1", "--", "study.ipynb", "--set", "rat=1")
    done = bob("submit", "exp1", "--wait", "--", "study.ipynb", "--set", "rate=0.5")

    assert refused.exit_code == 1
    assert "study.ipynb has no parameter rat.\nHint: Did you mean rate?" in refused.stderr
    assert done.exit_code == 0, bob("logs", "exp1").stdout
    job = bob.describe("exp1")
    assert job["command"][1:] == [
        *("-m", "runai.widgets.notebook_run", "study.ipynb", "--set", "rate=0.5")
    ]
    assert job["progress"]["text"] == "cell 1 of 1"
    assert list(job["code"]["files"]) == ["study.ipynb"]
    copy = json.loads((tmp_path / "study.run-1.ipynb").read_text())
    assert copy["cells"][1]["source"] == "# Parameters\nrate = 0.5"


@pytest.mark.parametrize("options", [[], ["--array", "2"]], ids=["job", "array"])
def test_submit_without_gpus_prints_a_hint(bob, options):
    result = bob("submit", "exp1", *options, "--", "sleep", "600")

    assert "exp1 asks for no GPU; --gpus 1 asks for one" in result.stdout


@pytest.mark.parametrize(
    ("options", "expected_lines"),
    [
        pytest.param(
            "-g 1", ["job vision/exp1 would be submitted and start at once"], id="enough free GPUs"
        ),
        pytest.param(
            "-g 1 --workers 8",
            ["job vision/exp1 would be submitted and wait", "exp1 waits: only 5 of its 8 workers"],
            id="too few GPUs",
        ),
    ],
)
def test_dry_run_predicts_the_outcome_and_stores_nothing(bob, options, expected_lines):
    result = bob("submit", "exp1", *options.split(), "--dry-run", "--", "sleep", "600")

    assert result.exit_code == 0
    for line, expected in zip(result.stdout.splitlines(), expected_lines, strict=True):
        assert line.startswith(expected)
    assert json.loads(bob("list", "-o", "json").stdout) == []


@pytest.mark.parametrize(
    ("unchecked", "outcome"),
    [
        pytest.param("", "would be submitted and start at once", id="everything is checked"),
        pytest.param("taints, volumes, admission", "would be submitted", id="on Kubernetes"),
    ],
)
def test_dry_run_predicts_an_immediate_start_only_if_nothing_is_unchecked(unchecked, outcome):
    assert dry_run_outcome(overviews.workload("exp1"), unchecked) == outcome


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (3, "failed")])
def test_submit_wait_reports_each_change_once_and_exits_with_the_jobs_code(bob, code, state):
    program = f"raise SystemExit({code})"
    result = bob("submit", "exp1", "-g", "1", "--wait", "--", PYTHON, "-c", program)

    lines = result.stderr.splitlines()
    states = [line.split()[1].rstrip(":") for line in lines]
    assert result.exit_code == code
    assert lines[-1] == f"vision/exp1 {state}: exit code {code}"
    assert len(states) == len(set(states))


SELF_KILLING_PROGRAM = "import os; os.kill(os.getpid(), {})"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param([PYTHON, "-c", SELF_KILLING_PROGRAM.format(11)], 128 + 11, id="crashes"),
        pytest.param([PYTHON, "-c", SELF_KILLING_PROGRAM.format(9)], 128 + 9, id="kills itself"),
        pytest.param(["sh", "-c", "exit 137"], 137, id="exits as if killed"),
        pytest.param(["bash", "-c", "set -o pipefail; exit 7 | cat"], 7, id="pipe"),
        pytest.param([PYTHON, "-c", "input()"], 1, id="reads without input"),
        pytest.param(["sh", "-c", "read answer || exit 5"], 5, id="shell reads without input"),
        pytest.param(
            ["sh", "-c", "touch file; rm -i file; test -e file"], 0, id="prompts without input"
        ),
    ],
)
def test_submit_wait_without_a_terminal_exits_with_the_programs_exit_code(bob, command, code):
    assert bob("submit", "exp1", "--wait", "--", *command).exit_code == code


def test_submitted_program_gets_its_arguments_verbatim(bob):
    arguments = ["--", "-g", "two\nlines", "*.py", "$HOME", '{"lr": [1e-3, "a b"]}', "", "ä"]
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"

    bob("submit", "exp1", "--wait", "--", PYTHON, "-c", program, *arguments)

    assert json.loads(bob("logs", "exp1").stdout) == arguments


def test_submit_with_json_output_prints_the_submitted_workload(bob):
    result = bob("submit", "exp1", "-g", "1", "-o", "json", "--", "sleep", "600")

    assert json.loads(result.stdout)["workloads"][0]["id"] == "vision/exp1"


REFUSALS = {
    "unknown project": (
        ["-p", "vison", "--", "sleep", "600"],
        "There is no project vison.",
        "Yours: vision.",
    ),
    "GPUs and GPU memory": (
        ["-g", "1", "--gpu-memory", "4G", "--", "sleep", "600"],
        "Both GPUs and GPU memory are given.",
        "one of them",
    ),
    "missing directory": (
        ["--workdir", "/no/such/place", "--", "sleep", "600"],
        "There is no directory",
        "--workdir",
    ),
    "missing program": (["--", "pyhton", "x.py"], "There is no program pyhton.", "full path"),
    "missing script": (["--", "python", "train.py"], "There is no script train.py", "--workdir"),
}


def test_submit_refusal_is_one_sentence_with_a_hint(bob):
    for case, (arguments, sentence, hint) in REFUSALS.items():
        result = bob("submit", "exp1", *arguments)

        assert (result.exit_code, result.stdout) == (1, ""), case
        error, *hints = result.stderr.splitlines()
        assert error.startswith("Error: "), case
        assert sentence in error, case
        assert hint in " ".join(hints), case
    assert json.loads(bob("list", "-o", "json").stdout) == []


def test_submit_with_json_output_prints_an_error_as_json(bob):
    result = bob("submit", "exp1", "-p", "vison", "-o", "json", "--", "sleep", "600")

    assert (result.exit_code, result.stdout) == (1, "")
    assert json.loads(result.stderr)["error"]["code"] == "unknown_project"


def fake_environment(folder, name):
    """Make a Python environment whose `python` names it, and runs the test's Python."""
    python = folder / name / "bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nFOUND={name} exec {PYTHON} "$@"\n')
    python.chmod(0o755)
    return folder / name


SHOW_ENVIRONMENT = """
import os
names = "FOUND", "VIRTUAL_ENV", "CONDA_PREFIX", "TZ", "HF_TOKEN", "PYTHONPATH"
print(*(os.environ.get(name, "-").rpartition("/")[2] for name in names))
"""


@pytest.mark.parametrize(
    ("variable", "options", "printed"),
    [
        pytest.param("VIRTUAL_ENV", (), "venv venv - Asia/Tokyo - -", id="venv"),
        pytest.param("CONDA_PREFIX", (), "venv - venv Asia/Tokyo - -", id="conda"),
        pytest.param("VIRTUAL_ENV", ("-e", "PATH={other}"), "other venv - Asia/Tokyo - -",
                     id="own-path-wins"),
        pytest.param("VIRTUAL_ENV", ("-e", "TZ=Europe/Rome"), "venv venv - Europe/Rome - -",
                     id="own-time-zone-wins"),
        pytest.param("VIRTUAL_ENV", ("--no-environment",), "- .runai-env - * - -", id="none"),
    ],
)  # fmt: skip
def test_job_runs_in_the_python_environment_of_its_submission(
    bob, tmp_path, monkeypatch, eventually, variable, options, printed
):
    venv, other = (fake_environment(tmp_path, name) for name in ("venv", "other"))
    monkeypatch.setenv("PATH", f"{venv}/bin:{os.environ['PATH']}")
    monkeypatch.setenv(variable, str(venv))
    for name, value in {"TZ": "Asia/Tokyo", "HF_TOKEN": "secret", "PYTHONPATH": "/x"}.items():
        monkeypatch.setenv(name, value)
    options = [option.format(other=f"{other}/bin:/usr/bin:/bin") for option in options]

    submitted = bob("submit", "exp1", *options, "--", "python", "-c", SHOW_ENVIRONMENT)

    assert submitted.exit_code == 0, submitted.output
    eventually(lambda: bob.describe("exp1")["state"] == "succeeded")
    found = bob("logs", "exp1").stdout.split()
    expected = [word.rpartition("/")[2] for word in printed.split()]
    # *: the service, which is in this process, may have the test's time zone itself.
    assert [f for f, e in zip(found, expected, strict=True) if e != "*"] == [
        e for e in expected if e != "*"
    ]
    own = [option.partition("=")[0] for option in options if "=" in option]
    assert bob.describe("exp1")["env_names"] == own


def test_describe_names_the_python_of_a_job(bob, tmp_path, monkeypatch, eventually):
    venv = tmp_path / "real"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(venv)], check=True)
    monkeypatch.setenv("PATH", f"{venv}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))

    bob("submit", "exp1", "--", "python", "-c", "import sys; print(sys.prefix)")
    eventually(lambda: bob.describe("exp1")["python"])

    assert bob.describe("exp1")["python"] == f"{venv}/bin/python"
    assert re.search(rf"^Python: +{venv}/bin/python$", bob("describe", "exp1").stdout, re.MULTILINE)
    eventually(lambda: bob("logs", "exp1").stdout == f"{venv}\n")


def test_describe_names_the_users_own_python_at_its_first_start(bob, monkeypatch, eventually):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)

    bob("submit", "exp1", "--", "python", "-c", "import sys; print(sys.executable)")
    eventually(lambda: bob.describe("exp1")["python"])

    python = bob.describe("exp1")["python"]
    assert python.endswith("/.runai-env/bin/python")
    eventually(lambda: bob("logs", "exp1").stdout == f"{python}\n")


def test_submission_from_another_machine_takes_no_environment(bob, monkeypatch, eventually):
    variables = {"VIRTUAL_ENV": "/elsewhere", "CONDA_PREFIX": "/elsewhere"}
    note = EnvironmentNote(variables=variables, machine="0" * 64, in_session=True)
    monkeypatch.setattr(submit, "environment_note", lambda: note)

    bob("submit", "exp1", "--", PYTHON, "-c", SHOW_ENVIRONMENT)
    eventually(lambda: bob.describe("exp1")["state"] == "succeeded")

    assert "elsewhere" not in bob("logs", "exp1").stdout


@pytest.mark.parametrize(
    ("variables", "exists", "is_own"),
    [
        pytest.param({"CONDA_PREFIX": "/conda"}, True, True, id="conda"),
        pytest.param({"VIRTUAL_ENV": "/venv"}, True, True, id="venv"),
        pytest.param({"VIRTUAL_ENV": "/venv"}, False, False, id="venv-without-an-own"),
        pytest.param({"VIRTUAL_ENV": "{own}"}, True, False, id="own"),
        pytest.param({}, True, False, id="none"),
    ],
)
def test_notebook_in_another_environment_runs_on_the_users_own_python(
    monkeypatch, tmp_path, variables, exists, is_own
):
    own = tmp_path / ".runai-env"
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.setenv(name, variables.get(name, "").format(own=own))
    if exists:
        (own / "bin").mkdir(parents=True)
        (own / "bin/python").touch()

    assert submit._python_of_notebook() == (f"{own}/bin/python" if is_own else "python")
