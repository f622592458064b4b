"""A field of a request is declared once: every surface shows it, with its help and its error.

A program adds a field to a subclass of the request before any surface is loaded.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import inspect, json
from typing import Annotated

from runai.hub_service.wire import workload_request
from runai.hub_service.wire.workload_request import RequestOption, WorkerCount

class WithPatience(workload_request.SubmitRequest):
    patience: Annotated[WorkerCount | None, RequestOption(
        flags=("--patience",), help="Wait this long, beside --gpus.", label="Patience",
        example="7", in_spawn_form=("local",))] = None

workload_request.SubmitRequest = WithPatience

from click.testing import CliRunner
from IPython.core.interactiveshell import InteractiveShell
from runai.hub_service.api.pages.form_fields import request_form_fields
from runai.hub_service.api.pages.templates import templates
from runai.hub_service.cli.framework.command_list import cli
from runai.hub_service.cli.framework.reference import reference
from runai.hub_service.wire.validation import checked
from runai.spawner import form
from runai.spawner.session_request import SessionRequest
from runai.widgets import submit
from runai.widgets.magics import RunaiMagics

open("train.py", "w").close()
runner, magics = CliRunner(), RunaiMagics(InteractiveShell.instance())

def refusal(call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except Exception as refused:
        return str(refused)

def command_line(*words):
    return runner.invoke(cli, ["submit", *words], terminal_width=200).output

macros = templates("/").get_template("parts.html").module
fields = [field for part in request_form_fields("local") for field in part]
project = form.ProjectChoices("vision", "", ())
magic, options = RunaiMagics.runai_submit, {"project": "vision", "patience": "0"}
print(json.dumps({
    "command line": [command_line("--help"), command_line("x", "--patience=0", "--", "true")],
    "reference": [reference(), ""],
    "magic": [magic.__doc__, refusal(magics.runai_submit, "train.py --patience 0")],
    "python": [str(inspect.signature(submit)) + submit.__doc__,
               refusal(submit, "train.py", patience=0)],
    "page": ["".join(str(macros.request_field(*field)) for field in fields),
             refusal(checked, WithPatience, {"patience": "0"})],
    "spawn form": [form.render([project], last={}, of_machine=True),
                   refusal(SessionRequest.parse, options)],
}))
"""


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory):
    """Return the text and the error of each surface with one more field."""
    folder = tmp_path_factory.mktemp("surfaces")
    output = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True, cwd=folder)
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize(
    ("surface", "name", "help_text"),
    [
        pytest.param("command line", "--patience N", "Wait this long, beside --gpus.", id="shell"),
        pytest.param("reference", "--patience", "Wait this long, beside --gpus.", id="reference"),
        pytest.param("magic", "--patience N", "Wait this long, beside --gpus.", id="magic"),
        pytest.param("python", "patience", "Wait this long, beside gpus.", id="python"),
        pytest.param("page", 'name="patience"', "Wait this long, beside GPUs.", id="page"),
        pytest.param("spawn form", 'name="patience"', "Wait this long, beside GPUs.", id="spawner"),
    ],
)
def test_added_field_of_a_request_is_shown_with_its_help(surface, name, help_text, surfaces):
    text, _error = surfaces[surface]

    assert name in text
    assert help_text in " ".join(text.split())


@pytest.mark.parametrize(
    ("surface", "sentence"),
    [
        pytest.param(
            "command line",
            "Invalid value for '--patience': 0 is not in the range 1<=x<=10000.",
            id="shell",
        ),
        pytest.param(
            "magic",
            "Invalid value for '--patience': 0 is not in the range 1<=x<=10000.",
            id="magic",
        ),
        pytest.param("python", "patience is 0: it must be at least 1.", id="python"),
        pytest.param("page", "patience is '0': it must be at least 1.", id="page"),
        pytest.param("spawn form", "patience is '0': it must be at least 1.", id="spawner"),
    ],
)
def test_added_field_of_a_request_is_checked_on_every_surface(surface, sentence, surfaces):
    _text, error = surfaces[surface]

    assert sentence in error
