"""Arguments after `--` are passed on unchanged; a script among them must exist."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from runai.hub_service.cli.framework.program_argument import (
    ProgramCommand,
    absolute_workdir,
    check_program,
)
from runai.hub_service.processes.user_environment import FOLDER
from runai.hub_service.wire.errors import InvalidRequest


@click.command(cls=ProgramCommand)
@click.argument("name", required=False)
@click.option("-g", "gpus")
def echo_arguments(name, gpus, program):
    click.echo(repr((name, gpus, program)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["exp1", "--", "true"], ("exp1", None, ("true",)), id="name"),
        pytest.param(["-g", "1", "--", "true"], (None, "1", ("true",)), id="no-name"),
        pytest.param(
            ["exp1", "--", "python", "-g", "2", "--", "x"],
            ("exp1", None, ("python", "-g", "2", "--", "x")),
            id="options-of-the-program",
        ),
    ],
)
def test_first_double_dash_separates_submit_options_from_the_program(arguments, expected):
    assert CliRunner().invoke(echo_arguments, arguments).output == f"{expected!r}\n"


@pytest.mark.parametrize("arguments", [["exp1"], ["exp1", "--"], []], ids=" ".join)
def test_submit_without_a_program_is_a_usage_error_with_a_hint(arguments):
    result = CliRunner().invoke(echo_arguments, arguments)

    assert result.exit_code == 2
    assert "put the program behind --" in result.output


def test_two_job_names_before_the_double_dash_are_a_usage_error():
    assert CliRunner().invoke(echo_arguments, ["exp1", "exp2", "--", "true"]).exit_code == 2


@pytest.mark.parametrize(
    ("program", "missing"),
    [
        pytest.param(["python", "train.py"], "train.py", id="python"),
        pytest.param(["/usr/bin/python3.11", "-u", "train.py"], "train.py", id="interpreter-path"),
        pytest.param(["bash", "run.sh", "x"], "run.sh", id="shell"),
        pytest.param(["./train.py"], "./train.py", id="executable"),
        pytest.param(["torchrun", "--standalone", "train.py"], "train.py", id="torchrun"),
    ],
)
def test_missing_script_is_refused_before_submission(program, missing, tmp_path):
    with pytest.raises(InvalidRequest) as refused:
        check_program(program, tmp_path)

    assert refused.value.message == f"There is no script {missing} in {tmp_path}."
    assert "--workdir" in refused.value.hint


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(["python", "here.py", "missing.py"], id="existing-script"),
        pytest.param(["python", "-m", "train.py"], id="module"),
        pytest.param(["python", "-c", "print()", "x.py"], id="program-text"),
        pytest.param(["nvidia-smi"], id="no-interpreter"),
        pytest.param(["train.py"], id="program-in-PATH"),
        pytest.param(["cat", "train.py"], id="program-that-reads-files"),
        pytest.param(["python"], id="interpreter-alone"),
        pytest.param(["python", "-W", "ignore", "train.py"], id="option-value-before-a-script"),
    ],
)
def test_program_arguments_not_certain_to_be_scripts_are_not_checked(program, tmp_path):
    (tmp_path / "here.py").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / program[0]).touch(mode=0o755)

    check_program(program, tmp_path, str(programs))


def test_program_in_the_users_own_libraries_is_accepted(tmp_path, monkeypatch):
    programs = tmp_path / FOLDER / "bin"
    programs.mkdir(parents=True)
    (programs / "own-tool").touch(mode=0o755)
    monkeypatch.setenv("HOME", str(tmp_path))

    check_program(["own-tool"], tmp_path)


@pytest.mark.parametrize(
    ("program", "search_path", "sentence"),
    [
        pytest.param(["pyhton", "x.py"], None, "There is no program pyhton.", id="mistyped"),
        pytest.param(["cd", "x"], "/nowhere", "There is no program cd.", id="shell built-in"),
        pytest.param(["./run"], None, "There is no program ./run in {folder}.", id="relative"),
        pytest.param(["/no/tool"], None, "There is no program /no/tool.", id="full path"),
        pytest.param(["sh"], "/nowhere", "There is no program sh.", id="not in the job's PATH"),
    ],
)
def test_missing_program_is_refused_before_submission(program, search_path, sentence, tmp_path):
    with pytest.raises(InvalidRequest) as refused:
        check_program(program, tmp_path, search_path)

    assert refused.value.message == sentence.format(folder=tmp_path)


def test_missing_workdir_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="There is no directory"):
        absolute_workdir(str(tmp_path / "nowhere"))


def test_workdir_defaults_to_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert absolute_workdir(None) == tmp_path.resolve()
