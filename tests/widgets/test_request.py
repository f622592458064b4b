"""Requests that users write in a notebook, and the errors for invalid ones."""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runai.hub_service.model.records import SOURCE_PLACEHOLDER
from runai.hub_service.wire.amounts import memory_mib
from runai.hub_service.wire.errors import InvalidRequest
from runai.widgets import request

PYTHON = sys.executable


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a few programs."""
    (tmp_path / "train.py").write_text("print('training')")
    (tmp_path / "my train.py").write_text("print('training')")
    (tmp_path / "run.sh").write_text("echo running")
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "story.ipynb").write_text("{}")
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("program", "args", "command"),
    [
        pytest.param("train.py", [], [PYTHON, "-u", "train.py"], id="script"),
        pytest.param(
            "train.py", ["-n", "3"], [PYTHON, "-u", "train.py", "-n", "3"], id="arguments"
        ),
        pytest.param("my train.py", [], [PYTHON, "-u", "my train.py"], id="name with a space"),
        pytest.param(
            "train.py --lr 1", [], [PYTHON, "-u", "train.py", "--lr", "1"], id="command line"
        ),
        pytest.param("run.sh", [], ["sh", "run.sh"], id="shell script"),
        pytest.param("env A='b c' true", [], ["env", "A=b c", "true"], id="program of the system"),
        pytest.param(["a", "b c"], ["d"], ["a", "b c", "d"], id="list of words"),
        pytest.param(Path("my train.py"), [], [PYTHON, "-u", "my train.py"], id="path to a script"),
        pytest.param(b"true a", [], ["true", "a"], id="bytes"),
        pytest.param(("true", 1, Path("x")), [], ["true", "1", "x"], id="tuple of words"),
        pytest.param(
            "true", "--epochs 3 'a b'", ["true", "--epochs", "3", "a b"], id="arguments as text"
        ),
        pytest.param(
            "true",
            ["-n", 3, 0.5, Decimal("1.50"), Path("out"), b"x", np.float32(0.5), np.int64(7), True],
            ["true", "-n", "3", "0.5", "1.50", "out", "x", "0.5", "7", "True"],
            id="numbers and paths as arguments",
        ),
        pytest.param("true", 10**80, ["true", "1" + "0" * 80], id="number as arguments"),
        pytest.param("true", Path("a b"), ["true", "a b"], id="path as arguments"),
        pytest.param("true", (str(n) for n in range(2)), ["true", "0", "1"], id="generator"),
        pytest.param("true", None, ["true"], id="no arguments"),
    ],
)
def test_program_command_accepts_scripts_commands_and_arguments(program, args, command):
    assert request.program_command(program, args) == command


def test_program_command_uses_the_full_path_of_an_executable(folder):
    assert request.program_command("./tool") == [str(folder / "tool")]


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        pytest.param(
            "trian.py", "There is no file trian.py in {}. Did you mean train.py?", id="misspelt"
        ),
        pytest.param(
            "other.py",
            "There is no file other.py in {}. Save it first, or name it by its path.",
            id="missing script",
        ),
        pytest.param(
            "notes.txt",
            "notes.txt is neither a Python script nor executable. Run chmod +x notes.txt",
            id="file that is no program",
        ),
        pytest.param(
            "story.ipynb",
            "{}/story.ipynb is no notebook. Open and save it in JupyterLab.",
            id="empty notebook",
        ),
        pytest.param("", "There is nothing to run. Name a script or a command.", id="empty"),
        pytest.param(
            "echo 'a",
            "The command cannot be read: no closing quotation. Check its quotation marks.",
            id="open quotation",
        ),
    ],
)
def test_program_command_names_a_missing_or_invalid_program(program, sentence, folder):
    with pytest.raises(InvalidRequest) as refused:
        request.program_command(program)

    assert str(refused.value) == sentence.format(folder)


WORD_HINT = "Give text, a number or a path."
LIST_HINT = "Give a list of words, or text as in a shell."


@pytest.mark.parametrize(
    ("program", "args", "sentence"),
    [
        pytest.param(None, (), f"The program is None. {LIST_HINT}", id="no program"),
        pytest.param(12, (), f"The program is an int. {LIST_HINT}", id="number as program"),
        pytest.param({"a": 1}, (), f"The program is a dict. {LIST_HINT}", id="dict as program"),
        pytest.param(
            ["ls", None], (), f"Word 2 of the command is None. {WORD_HINT}", id="None in a command"
        ),
        pytest.param(
            "true", ["a", None], f"Argument 2 is None. {WORD_HINT}", id="None in arguments"
        ),
        pytest.param("true", [["a"]], f"Argument 1 is a list. {WORD_HINT}", id="list in arguments"),
        pytest.param("true", {"--lr": 1}, f"args is a dict. {LIST_HINT}", id="dict as arguments"),
        pytest.param("true", {"a", "b"}, f"args is a set. {LIST_HINT}", id="set as arguments"),
        pytest.param("true", object(), f"args is an object. {LIST_HINT}", id="object as arguments"),
        pytest.param(
            "true",
            [10**5000],
            f"Argument 1 is a number of more than 4300 digits. {WORD_HINT}",
            id="number of 5,001 digits",
        ),
        pytest.param(
            "true",
            "'a",
            "The command cannot be read: no closing quotation. Check its quotation marks.",
            id="open quotation in arguments",
        ),
        pytest.param(
            "x" * 5000,
            (),
            f"There is no file {'x' * 59}… in {{}}. Save it first, or name it by its path.",
            id="script name too long",
        ),
    ],
)
def test_program_command_names_words_of_an_invalid_type(program, args, sentence, folder):
    with pytest.raises(InvalidRequest) as refused:
        request.program_command(program, args)

    assert str(refused.value) == sentence.format(folder)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        pytest.param(
            {"gpus": -1},
            "gpus is -1: use a number from 0 upwards.",
            id="negative",
        ),
        pytest.param(
            {"gpus": "many"},
            "gpus is 'many': use a number such as 0.5 or 2.",
            id="GPUs in words",
        ),
        pytest.param(
            {"gpus": "0.0001"},
            "gpus is '0.0001': use at most three decimals.",
            id="too fine a fraction",
        ),
        pytest.param(
            {"gpu_memory": "lots"},
            "gpu_memory is 'lots': give a number and a unit, as in 4G or 4096M.",
            id="memory in words",
        ),
        pytest.param(
            {"name": "Exp 1"},
            "name is 'Exp 1': it has characters that are not possible there, or is too long. Use"
            " small letters, digits and '-', beginning and ending with a letter or digit; at most"
            " 38.",
            id="invalid name",
        ),
        pytest.param(
            {"expected_runtime": "soon"},
            "expected_runtime is 'soon': give a number and a unit, such as 90m, 2h or 3d.",
            id="expected runtime in words",
        ),
        pytest.param(
            {"max_runtime": "soon"},
            "max_runtime is 'soon': give a number and a unit, such as 90m, 2h or 3d.",
            id="time limit in words",
        ),
        pytest.param(
            {"workers": 0},
            "workers is 0: it must be at least 1.",
            id="no worker",
        ),
        pytest.param(
            {"priority": "urgent"},
            "priority is 'urgent': use low, normal, high or a number from 0 to 1000.",
            id="unknown priority",
        ),
        pytest.param(
            {"workdir": "/nowhere"},
            "There is no directory /nowhere. Name one that exists.",
            id="missing directory",
        ),
        pytest.param(
            {"env": ["NOT_SET_ANYWHERE"]},
            "NOT_SET_ANYWHERE is not set here. Give it as NOT_SET_ANYWHERE=VALUE.",
            id="variable without a value",
        ),
        pytest.param({"env": {"A": None}}, f"env A is None. {WORD_HINT}", id="None as a value"),
        pytest.param({"env": {"A": ["b"]}}, f"env A is a list. {WORD_HINT}", id="list as a value"),
        pytest.param(
            {"env": {None: "b"}}, "A variable is None. Give it as NAME=VALUE.", id="None as a name"
        ),
        pytest.param(
            {"env": [("A", "b")]},
            "A variable is a tuple. Give it as NAME=VALUE.",
            id="pair as a variable",
        ),
        pytest.param(
            {"gpus": 10**5000},
            "gpus is a number of more than 60 digits: use a number such as 0.5 or 2.",
            id="GPUs of 5,001 digits",
        ),
        pytest.param(
            {"gpus": "200000"},
            "gpus is '200000': use at most 100000.",
            id="too many GPUs",
        ),
        pytest.param(
            {"gpu_memory": "9" * 5000 + "G"},
            f"gpu_memory is '{'9' * 59}…': give a number and a unit, as in 4G or 4096M.",
            id="too much memory",
        ),
        pytest.param(
            {"priority": "9" * 5000},
            f"priority is '{'9' * 59}…': use low, normal, high or a number from 0 to 1000.",
            id="priority of 5,000 nines as text",
        ),
        pytest.param(
            {"priority": 10**5000},
            "priority is a number of more than 60 digits: use low, normal, high or a number from 0"
            " to 1000.",
            id="priority of 5,001 digits",
        ),
        pytest.param(
            {"priority": "٣"},
            "priority is '٣': use low, normal, high or a number from 0 to 1000.",
            id="digit outside ASCII",
        ),
        pytest.param(
            {"workers": 10**5000},
            "workers is a number of more than 60 digits: it must be at most 10000.",
            id="workers of 5,001 digits",
        ),
        pytest.param(
            {"workdir": "~nobody-here/x"},
            "The home directory of nobody-here is not known, so ~nobody-here/x cannot be found."
            " Name another path.",
            id="unknown home",
        ),
        pytest.param(
            {"workdir": 5},
            "There is no directory 5. Name one that exists.",
            id="number as directory",
        ),
        pytest.param(
            {"env": {"not a name": "secret"}},
            "env: it has characters that are not possible there, or is too long. Give it as"
            " NAME=VALUE.",
            id="value of a variable stays secret",
        ),
    ],
)
def test_submit_request_refuses_an_invalid_option_in_one_sentence(options, sentence):
    with pytest.raises(InvalidRequest) as refused:
        request.keyword_request(["true"], **options)

    assert str(refused.value) == sentence


def test_job_environment_converts_values_of_variables_to_text():
    variables = {"A": 3, "B": 0.5, "C": Path("/data"), "D": b"x", "E": ""}

    assert request.environment(variables) == {"A": "3", "B": "0.5", "C": "/data", "D": "x", "E": ""}
    assert request.environment("A=b c") == {"A": "b c"}


@pytest.mark.parametrize(
    ("options", "is_set"),
    [({}, False), ({"priority": "normal"}, True)],
    ids=["no priority", "normal priority"],
)
def test_submit_request_sets_the_priority_only_if_it_is_an_option(options, is_set):
    job_request = request.keyword_request(["true"], interactive=True, **options)

    assert ("priority" in job_request.model_fields_set) is is_set


def test_submit_request_without_an_amount_requests_no_gpu():
    job_request = request.keyword_request(["true"])

    assert (job_request.gpus, job_request.gpu_memory_mib, job_request.kind) == (None, None, "job")


@pytest.mark.parametrize("image", [None, "quay.io/jupyter/base-notebook"])
def test_submit_request_records_code_digests_unless_it_has_an_image(folder, image):
    (folder / "noted.py").write_text("pass")

    job_request = request.keyword_request(["python", "noted.py", "missing.yaml"], image=image)

    digest = hashlib.sha256(b"pass").hexdigest()
    files = {"noted.py": digest, "missing.yaml": "gone"}
    assert (job_request.code and job_request.code.files) == (None if image else files)


def test_submit_request_records_the_umask_of_the_kernel(folder):
    before = os.umask(0o027)
    try:
        job_request = request.keyword_request(["true"])
    finally:
        os.umask(before)

    assert job_request.umask is not None
    assert (job_request.umask.umask, job_request.umask.uid) == ("0027", os.geteuid())


@pytest.mark.parametrize(
    ("options", "is_sent"),
    [({}, True), ({"image": "x:1"}, False), ({"no_environment": True}, False)],
    ids=["default", "other image", "none"],
)
def test_submit_request_has_the_kernels_environment(options, is_sent, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    monkeypatch.setenv("HF_TOKEN", "secret")

    note = request.keyword_request(["true"], **options).environment

    assert (note is not None and note.variables.get("VIRTUAL_ENV") == "/venv") == is_sent
    assert "secret" not in str(note)


def test_submit_request_converts_text_options_to_its_fields(folder, monkeypatch):
    monkeypatch.setenv("MY_OWN", "handed on")

    job_request = request.keyword_request(
        ["true"], gpu_memory="1.5 GiB", priority="75", env=["A=b=c", "MY_OWN"], interactive=True
    )

    assert (
        job_request.kind,
        job_request.gpus,
        job_request.gpu_memory_mib,
        job_request.priority,
    ) == ("session", None, 1536, 75)
    assert job_request.env == {"A": "b=c", "MY_OWN": "handed on"}
    assert job_request.workdir == str(folder)


@pytest.mark.parametrize("size", ["4G", "4GiB", "0.3G", "500M", "1 T", "2gb"])
def test_memory_sizes_parse_as_on_the_command_line(size):
    job_request = request.keyword_request(["true"], gpu_memory=size)

    assert job_request.gpu_memory_mib == memory_mib(size)


def test_cell_command_runs_the_stored_source_with_this_python():
    command = request.cell_command("print(1)", ["--lr", "1"])

    assert command == [PYTHON, "-u", SOURCE_PLACEHOLDER, "--lr", "1"]


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        pytest.param("  \n", "The cell has no program. Write it below %%runai_submit.", id="empty"),
        pytest.param(
            "x = 1\n!ls",
            "The cell is not a Python program: invalid syntax in line 2. Magics (%, !) work in"
            " notebooks only; leave them out.",
            id="magic",
        ),
    ],
)
def test_cell_command_refuses_a_cell_that_is_not_a_program(cell, sentence):
    with pytest.raises(InvalidRequest) as refused:
        request.cell_command(cell)

    assert str(refused.value) == sentence


def test_cell_program_imports_modules_beside_its_notebook(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")

    assert request.with_module_path({}, None) == {"PYTHONPATH": f"{folder}:/somewhere"}
    assert request.with_module_path({"PYTHONPATH": "/mine"}, None) == {"PYTHONPATH": "/mine"}


ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(30, 6000).map(lambda digits: 10**digits),
    st.floats(),
    st.decimals(),
    st.text(max_size=70),
    st.text("0123456789.eE-+ \u0663", max_size=12),
    st.sampled_from(
        ["", "9" * 5000, "\udcff", "\x00", "a\nb", "~nobody-here", "1e999999999", "4G"]
    ),
    st.binary(max_size=4),
    st.just(Path("x")),
    st.lists(st.none() | st.integers() | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=2),
)
OPTION_NAMES = (
    *("gpus", "gpu_memory", "priority", "env", "workdir", "name", "project", "workers", "elastic"),
    *("min_workers", "array", "preemptible", "backoff_limit", "grace_seconds", "expected_runtime"),
    *("image", "gpu_type", "max_runtime"),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(OPTION_NAMES), ODD_VALUES, min_size=1, max_size=3),
    ODD_VALUES,
    ODD_VALUES,
)
def test_submit_options_of_any_type_give_a_request_or_an_error_sentence(options, program, args):
    for make_request in (
        lambda: request.keyword_request(["true"], **options),
        lambda: request.program_command(program, args),
        lambda: request.cell_command(program if isinstance(program, str) else "1", ["a"]),
    ):
        message = ""
        with suppress(InvalidRequest):
            try:
                make_request()
            except InvalidRequest as refused:
                message = str(refused)
                raise
        assert len(message) < 500
        assert "\x00" not in message


@pytest.mark.parametrize(
    "submit",
    [
        pytest.param(lambda: request.program_command("nosuch.py"), id="script"),
        pytest.param(lambda: request.keyword_request(["sh"]), id="command"),
        pytest.param(lambda: request.keyword_request(["sh"], workdir="data"), id="relative"),
    ],
)
def test_submit_in_a_removed_folder_gets_an_error_that_names_the_folder(
    tmp_path, monkeypatch, submit
):
    removed_folder = tmp_path / "x"
    removed_folder.mkdir()
    monkeypatch.chdir(removed_folder)
    removed_folder.rmdir()

    with pytest.raises(InvalidRequest) as refused:
        submit()

    assert "was removed while this kernel runs in it. Go to one that exists" in str(refused.value)
    assert str(removed_folder) in str(refused.value)


def test_existing_workdir_is_accepted_by_a_kernel_in_a_removed_folder(tmp_path, monkeypatch):
    removed_folder = tmp_path / "gone"
    removed_folder.mkdir()
    monkeypatch.chdir(removed_folder)
    removed_folder.rmdir()

    assert request.keyword_request(["sh"], workdir=str(tmp_path)).workdir == str(tmp_path)
