"""A notebook and its parameters become the command of a job, or one error sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from runai.hub_service.client.notebook_program import (
    notebook_command,
    parameters_of,
    program_of,
    python_literal,
    scalar,
)
from runai.hub_service.wire.errors import InvalidRequest

PARAMETERS = "rate, name = 0.1, 'x'\n%matplotlib inline\nsteps: int = 3\nif rate:\n    !ls\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a notebook of each kind."""

    def write(name: str, *sources: str, language: str = "python") -> None:
        cells = [
            {"cell_type": "code", "source": [source], "metadata": {"tags": ["parameters"][:at]}}
            for at, source in enumerate(sources)
        ]
        metadata = {"kernelspec": {"name": "any", "language": language}}
        text = json.dumps({"nbformat": 4, "cells": cells, "metadata": metadata})
        (tmp_path / name).write_text(text)

    write("study.ipynb", "import os", PARAMETERS)
    write("plain.ipynb", "import os")
    write("broken.ipynb", "", "rate = ")
    write("in_r.ipynb", "", "rate <- 1", language="R")
    (tmp_path / "empty.ipynb").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0.1", 0.1), ("1e-3", 0.001), ("-.5", -0.5), ("7", 7), ("+1_000", 1000), ("0x1f", 31)),
        *(("true", True), ("False", False), ("null", None), ("~", None), ("", None)),
        *(("no", "no"), ("1.2.3", "1.2.3"), ("*.csv", "*.csv"), ("it's", "it's"), ("a: b", "a: b")),
        *(
            ("'7'", "7"),
            ("'it''s'", "it's"),
            ('"a\\tb"', "a\tb"),
            (" x ", "x"),
            ("-.inf", -math.inf),
        ),
        *(("[1, true]", [1, True]), ('{"a": null}', {"a": None})),
    ],
    ids=repr,
)
def test_yaml_scalar_is_read_as_its_value_and_survives_as_python_source(text, value):
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)
    assert eval(python_literal(value)) == value


@pytest.mark.parametrize("drive", ["", "RTC:"])
def test_notebook_with_settings_becomes_the_runners_command(folder, drive):
    program = [f"{drive}study.ipynb", "--set", "rate=0.1", "--set=name=a b=c"]

    command = program_of(program, folder=folder, python="/bin/python3")

    assert command == [
        *("/bin/python3", "-m", "runai.widgets.notebook_run", "study.ipynb"),
        *("--set", "rate=0.1", "--set", "name=a b=c"),
    ]


def test_program_that_is_no_notebook_is_unchanged(folder):
    assert program_of(["papermill", "a.ipynb"], folder=folder) == ["papermill", "a.ipynb"]


def test_parameters_are_the_names_that_the_tagged_cell_assigns_with_their_defaults(folder):
    notebook = json.loads((folder / "study.ipynb").read_text())

    defaults = "(0.1, 'x')"
    assert parameters_of(notebook, "") == {"rate": defaults, "name": defaults, "steps": "3"}
    assert parameters_of({"cells": []}, "") is None


@pytest.mark.parametrize(
    ("name", "setting", "sentence"),
    [
        pytest.param(
            "study", "rat=1", "study.ipynb has no parameter rat. Did you mean rate?", id="near name"
        ),
        pytest.param(
            "study",
            "zzz=1",
            "study.ipynb has no parameter zzz. It has: rate, name, steps.",
            id="other name",
        ),
        pytest.param("study", "rate", "--set rate: write NAME=VALUE.", id="no value"),
        pytest.param("study", "rate=[1", "--set rate=[1 cannot be read.", id="open bracket"),
        pytest.param("study", "rate='x", "--set rate='x cannot be read.", id="open quotation"),
        pytest.param(
            "plain",
            "rate=1",
            "plain.ipynb takes no --set: none of its cells is tagged parameters. In JupyterLab",
            id="no tagged cell",
        ),
        pytest.param(
            "broken",
            "rate=1",
            "The cell of broken.ipynb that is tagged parameters is not plain Python.",
            id="no Python",
        ),
        pytest.param(
            "in_r", "rate=1", "in_r.ipynb is a notebook in r, and --set needs one", id="R"
        ),
        pytest.param("empty", "rate=1", "/empty.ipynb is no notebook.", id="empty file"),
        pytest.param("stdy", "rate=1", "Did you mean study.ipynb?", id="missing file"),
    ],
)
def test_wrong_parameter_is_refused_before_the_submission(folder, name, setting, sentence):
    with pytest.raises(InvalidRequest) as refused:
        notebook_command(f"{name}.ipynb", [setting], folder=folder)

    assert sentence in str(refused.value)


def test_other_argument_of_a_notebook_is_refused(folder):
    with pytest.raises(InvalidRequest, match="A notebook takes no argument --epochs"):
        program_of(["study.ipynb", "--epochs", "3"], folder=folder)


def test_notebook_of_an_image_is_not_looked_for_here():
    command = program_of(["/there/study.ipynb", "--set", "a=1"], folder=None)

    assert command[0] == "python"
    assert command[-3:] == ["/there/study.ipynb", "--set", "a=1"]
