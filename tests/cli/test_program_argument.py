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
def told(name, gpus, program):
    click.echo(repr((name, gpus, program)))


@pytest.mark.parametrize(
    ("arguments", "understood"),
    [
        pytest.param(["exp1", "--", "true"], ("exp1", None, ("true",)), id="name"),
        pytest.param(["-g", "1", "--", "true"], (None, "1", ("true",)), id="name-left-out"),
        pytest.param(
            ["exp1", "--", "python", "-g", "2", "--", "x"],
            ("exp1", None, ("python", "-g", "2", "--", "x")),
            id="options-of-the-program",
        ),
    ],
)
def test_the_first_dashes_divide_options_from_the_program(arguments, understood):
    assert CliRunner().invoke(told, arguments).output == f"{understood!r}\n"


@pytest.mark.parametrize("arguments", [["exp1"], ["exp1", "--"], []], ids=" ".join)
def test_without_a_program_the_way_to_name_one_is_shown(arguments):
    result = CliRunner().invoke(told, arguments)

    assert result.exit_code == 2
    assert "put the program behind --" in result.output


def test_two_names_are_misuse():
    assert CliRunner().invoke(told, ["exp1", "exp2", "--", "true"]).exit_code == 2


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
def test_a_missing_script_is_refused_before_anything_is_sent(program, missing, tmp_path):
    with pytest.raises(InvalidRequest) as refused:
        check_program(program, tmp_path)

    assert refused.value.message == f"There is no script {missing} in {tmp_path}."
    assert "--workdir" in refused.value.hint


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(["python", "here.py", "missing.py"], id="script-is-there"),
        pytest.param(["python", "-m", "train.py"], id="module"),
        pytest.param(["python", "-c", "print()", "x.py"], id="program-text"),
        pytest.param(["nvidia-smi"], id="no-interpreter"),
        pytest.param(["train.py"], id="looked-up-in-PATH"),
        pytest.param(["cat", "train.py"], id="not-a-program-of-scripts"),
        pytest.param(["python"], id="interpreter-alone"),
        pytest.param(["python", "-W", "ignore", "train.py"], id="cannot-tell"),
    ],
)
def test_only_what_is_certainly_a_script_is_looked_for(program, tmp_path):
    (tmp_path / "here.py").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / program[0]).touch(mode=0o755)

    check_program(program, tmp_path, str(programs))


def test_program_of_the_users_own_libraries_is_found(tmp_path, monkeypatch):
    programs = tmp_path / FOLDER / "bin"
    programs.mkdir(parents=True)
    (programs / "own-tool").touch(mode=0o755)
    monkeypatch.setenv("HOME", str(tmp_path))

    check_program(["own-tool"], tmp_path)


@pytest.mark.parametrize(
    ("program", "path", "sentence"),
    [
        pytest.param(["pyhton", "x.py"], None, "There is no program pyhton.", id="mistyped"),
        pytest.param(["cd", "x"], "/nowhere", "There is no program cd.", id="the shell's own"),
        pytest.param(["./run"], None, "There is no program ./run in {folder}.", id="relative"),
        pytest.param(["/no/tool"], None, "There is no program /no/tool.", id="full path"),
        pytest.param(["sh"], "/nowhere", "There is no program sh.", id="not on the job's own PATH"),
    ],
)
def test_missing_program_is_refused_before_anything_is_sent(program, path, sentence, tmp_path):
    with pytest.raises(InvalidRequest) as refused:
        check_program(program, tmp_path, path)

    assert refused.value.message == sentence.format(folder=tmp_path)


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="There is no directory"):
        absolute_workdir(str(tmp_path / "nowhere"))


def test_the_directory_is_this_one_unless_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert absolute_workdir(None) == tmp_path.resolve()
