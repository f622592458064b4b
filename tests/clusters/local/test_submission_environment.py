"""The environment of a submission: what a job takes of it, and from where."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from runai.hub_service.processes.accounts.submission_environment import (
    environment_note,
    environment_of_submission,
    job_environment,
)
from runai.hub_service.processes.accounts.umask import this_machine
from runai.hub_service.processes.program_files import python_of
from runai.hub_service.processes.user_account import UnixAccount
from runai.hub_service.wire.program_schemas import EnvironmentNote

HERE, OTHER_MACHINE = this_machine(), "0" * 64
UID = os.geteuid()
TAKEN = {
    "PATH": "/venv/bin:/usr/bin",
    "VIRTUAL_ENV": "/venv",
    "CONDA_PREFIX": "/opt/conda",
    "CONDA_DEFAULT_ENV": "base",
    "LANG": "de_DE.UTF-8",
    "LC_ALL": "C.UTF-8",
    "LC_NUMERIC": "C",
    "TZ": "Europe/Zurich",
}
LEFT = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"),
    *("JUPYTERHUB_API_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK"),
    *("HOME", "USER", "SHELL", "TMPDIR", "MANPATH", "XPATH", "PATHS", "LC_", "LC_all", "LANGUAGE"),
    *("LC_TOKEN", "LC_FOO"),
    *("CONDA_EXE", "CONDA_PREFIX_1", "VIRTUAL_ENV_PROMPT", "CUDA_VISIBLE_DEVICES", "http_proxy"),
)
HOME = "/home/ana"
ACCOUNT = UnixAccount("ana", Path(HOME)).environment()
OWN = f"{HOME}/.runai-env"
PLATFORM = Path(sys.executable).parent


@pytest.mark.parametrize("name", TAKEN)
def test_variable_of_the_environment_is_taken(name):
    note = environment_note({name: TAKEN[name]})

    assert environment_of_submission(note, image=None, in_pods=False) == {name: TAKEN[name]}


@pytest.mark.parametrize("name", LEFT)
def test_any_other_variable_is_neither_sent_nor_taken(name):
    forged = EnvironmentNote(variables={name: "x"}, machine=HERE, uid=UID)

    assert environment_note({name: "x"}).variables == {}
    assert environment_of_submission(forged, image=None, in_pods=False) == {}


@pytest.mark.parametrize(
    "value",
    ["", os.fsdecode(b"/caf\xe9/bin:/bin"), "/a\0b", "/x" * 15_001],
    ids=["empty", "latin-1", "nul", "long"],
)
def test_value_that_no_request_can_carry_is_left_out(value):
    assert environment_note({"PATH": value, "LANG": "C"}).variables == {"LANG": "C"}


@pytest.mark.parametrize(
    ("machine", "in_session", "image", "in_pods", "takes"),
    [
        pytest.param(HERE, False, None, False, True, id="shell-of-the-machine"),
        pytest.param(HERE, True, None, False, True, id="notebook-of-the-machine"),
        pytest.param(OTHER_MACHINE, False, None, False, False, id="other-machine"),
        pytest.param(OTHER_MACHINE, True, None, False, False, id="session-elsewhere"),
        pytest.param(None, True, None, False, False, id="unknown-machine"),
        pytest.param(OTHER_MACHINE, True, None, True, True, id="notebook-pod"),
        pytest.param(None, True, None, True, True, id="notebook-pod-without-a-machine-id"),
        pytest.param(HERE, True, "other:1", True, False, id="another-image"),
        pytest.param(HERE, False, None, True, False, id="shell-beside-the-cluster"),
    ],
)
def test_environment_is_taken_on_the_same_machine_or_image(
    machine, in_session, image, in_pods, takes
):
    note = EnvironmentNote(variables=TAKEN, machine=machine, uid=UID, in_session=in_session)

    taken = environment_of_submission(note, image=image, in_pods=in_pods)

    assert taken == (TAKEN if takes else {})


@pytest.mark.parametrize(
    ("client", "account", "takes"),
    [
        pytest.param(UID, None, True, id="service"),
        pytest.param(UID + 1, None, False, id="other-than-the-service"),
        pytest.param(1000, 1000, True, id="account"),
        pytest.param(1000, 1001, False, id="other-account"),
        pytest.param(None, None, False, id="unknown"),
    ],
)
def test_environment_is_taken_of_the_account_that_the_job_runs_as(client, account, takes):
    note = EnvironmentNote(variables=TAKEN, machine=HERE, uid=client)

    taken = environment_of_submission(note, image=None, in_pods=False, uid=account)

    assert taken == (TAKEN if takes else {})


def test_submission_without_a_note_takes_nothing(monkeypatch):
    assert environment_of_submission(None, image=None, in_pods=False) == {}


def test_note_of_a_session_says_so():
    session = {"RUNAI_API_URL": "http://hub", "JUPYTERHUB_API_TOKEN": "t"}
    session["JUPYTERHUB_SERVICE_PREFIX"] = "/user/ana/"

    note = EnvironmentNote(machine=HERE, uid=UID, in_session=True)
    assert environment_note(session) == note
    assert environment_note(session | {"JUPYTERHUB_SERVER_NAME": ""}) == note
    assert not environment_note(session | {"JUPYTERHUB_SERVER_NAME": "big"}).in_session
    for name in session:
        assert not environment_note(session | {name: ""}).in_session


@pytest.mark.parametrize(
    ("variables", "inherited", "first", "environment"),
    [
        pytest.param({}, "", f"{OWN}/runai/bin:{OWN}/bin", OWN, id="none"),
        pytest.param({"PATH": "/opt/cuda/bin"}, "PATH", f"{OWN}/runai/bin:{OWN}/bin", OWN,
                     id="shell-without-an-environment"),
        pytest.param({"PATH": "/v/bin:/bin", "VIRTUAL_ENV": "/v"}, "PATH VIRTUAL_ENV", "/v/bin",
                     "/v", id="venv"),
        pytest.param({"PATH": "/c/bin:/bin", "CONDA_PREFIX": "/c"}, "PATH CONDA_PREFIX", "/c/bin",
                     None, id="conda"),
        pytest.param({"PATH": f"{OWN}/bin:/bin", "VIRTUAL_ENV": OWN}, "PATH VIRTUAL_ENV",
                     f"{OWN}/runai/bin:{OWN}/bin", OWN, id="notebook"),
        pytest.param({"PATH": "/mine", "TZ": "UTC"}, "TZ", "/mine", OWN, id="own-path"),
    ],
)  # fmt: skip
def test_active_environment_begins_the_path_of_a_job(variables, inherited, first, environment):
    found, _ = job_environment(ACCOUNT, variables, inherited.split())

    assert f"{found['PATH']}:".startswith(f"{first}:")
    assert found.get("VIRTUAL_ENV") == environment
    end = variables.get("PATH", "").rpartition(":")[2]
    if environment != OWN:
        end = f"{end}:{PLATFORM}"
    assert found["PATH"].endswith(end)


@pytest.mark.parametrize(
    ("variables", "inherited", "path"),
    [
        ({"PATH": "/b", "VIRTUAL_ENV": OWN}, {"PATH", "VIRTUAL_ENV"}, f"{PLATFORM}:/b"),
        ({"PATH": "/b", "TZ": "UTC"}, {"TZ"}, None),
    ],
    ids=["own-environment", "path-of-e"],
)
def test_job_without_its_users_environment_keeps_what_was_chosen(variables, inherited, path):
    python = job_environment(ACCOUNT, variables, inherited)[1]

    assert python["without"].get("PATH") == path
    assert python["without"]["VIRTUAL_ENV"] == OWN


def test_job_in_another_environment_makes_none_of_its_user():
    variables = {"PATH": "/b", "VIRTUAL_ENV": "/v"}

    assert job_environment(ACCOUNT, variables, {"PATH", "VIRTUAL_ENV"})[1] == {}


@pytest.fixture
def programs(tmp_path):
    """Return a folder of programs: a Python, scripts with several first lines, and others."""
    heads = {
        "torchrun": f"#!{tmp_path}/python3.11 -P", "env-script": "#!/usr/bin/env python3.11",
        "shell": "#!/bin/sh", "binary": "\x7fELF", "odd": "#!", "pythonic": "#!/bin/sh",
    }  # fmt: skip
    for name, head in heads.items():
        (tmp_path / name).write_text(f"{head}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "python3.11").symlink_to(sys.executable)
    (tmp_path / "plain").write_text(f"#!{tmp_path}/python3.11\n")
    return tmp_path


@pytest.mark.parametrize(
    ("program", "has_python"),
    [
        ("python3.11", True), ("torchrun", True), ("env-script", True), ("./torchrun", True),
        ("{folder}/python3.11", True), ("shell", False), ("binary", False), ("odd", False),
        ("pythonic", False), ("plain", False), ("missing", False), ("./missing", False),
    ],
)  # fmt: skip
def test_python_of_a_program_is_itself_or_the_one_of_its_first_line(programs, program, has_python):
    path = f"/nonexistent:{programs}"

    found = python_of(program.format(folder=programs), str(programs), path)

    assert found == (f"{programs}/python3.11" if has_python else "")
