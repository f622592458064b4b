"""Who may do what, on a real JupyterHub: by tokens, cookies, commands, magics and buttons."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from authz import ROWS, USERS, asked, expected, judged, name_of
from runai.hub_service.cli import cli, lifecycle
from runai.hub_service.cli.reporting import ReportedError
from runai.hub_service.errors import Forbidden, NotFound, RunaiError, Unauthenticated
from runai.widgets import connect
from users_hub import NODE, ROOT
from users_stage import WITH_COOKIES, Stage, may_press, users_stage
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

NAMED = [(row, named) for row in ROWS for named in row.get("by", ())]
COMMANDS = [(row, named) for row, named in NAMED if named.startswith("runai ")]
MAGICS = [(row, named) for row, named in NAMED if named.startswith("%")]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with users_stage(tmp_path_factory.mktemp("hub")) as made:
        yield made


@pytest.fixture(autouse=True)
def _set(stage: Stage) -> None:
    stage.set()


# -- routes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_tokens_do_what_the_table_says(stage, row):
    request = asked(row, **stage.places)
    outcomes = {}
    for role in stage.clients:
        if row["route"].partition(" ")[0] != "GET":
            stage.set()
        with stage.clients[role].stream(**request) as reply:
            outcomes[role] = judged(reply)

    assert outcomes == {role: expected(row, role) for role in outcomes}


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_logins_in_a_browser_do_what_the_table_says(stage, row):
    request = asked(row, **stage.places)
    request["url"] = f"{ROOT}{request['url']}"
    outcomes, forged = {}, {}
    for role in WITH_COOKIES:
        if request["method"] != "GET":
            stage.set()
            forged[role] = stage.cookies[role].request(
                **request, headers={"Origin": "https://evil.example"}
            )
        with stage.cookies[role].stream(**request) as reply:
            outcomes[role] = judged(reply)

    assert outcomes == {role: expected(row, role) for role in outcomes}
    # What another site's page sends with the same cookie changes nothing.
    assert {reply.json()["code"] for reply in forged.values()} <= {"cross_site"}


# -- the command line, and notebooks -------------------------------------------------------------


REFUSED = (Forbidden, NotFound, Unauthenticated)


class Replaced(Exception):
    """This process would have become another program."""


@pytest.mark.parametrize(("row", "command"), COMMANDS, ids=[named for _, named in COMMANDS])
def test_commands_do_what_the_table_says(stage, row, command, monkeypatch, tmp_path, capsys):
    def replace(*_program: object) -> None:
        raise Replaced

    told: list[RunaiError] = []
    monkeypatch.setattr(os, "execvpe", replace)
    # Of several names each is told by itself.
    monkeypatch.setattr(lifecycle, "report", lambda error, **_: told.append(error))
    monkeypatch.setenv("RUNAI_API_URL", f"{stage.hub.url}{ROOT}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    outcomes = {}
    for role in (*USERS, "nobody"):
        if not row["route"].startswith("GET"):
            stage.set()
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", stage.tokens.get(role, "made-up"))
        arguments = shlex.split(command.format(**stage.places))[1:]
        try:
            told.clear()
            cli.main(arguments, prog_name="runai", standalone_mode=False)
            outcomes[role] = _outcome(told[0]) if told else "let in"
        except Replaced:
            outcomes[role] = "let in"
        except ReportedError as refused:
            outcomes[role] = _outcome(refused.error)
        except click.exceptions.Exit:
            outcomes[role] = "let in"
        assert "Traceback" not in "".join(capsys.readouterr())

    assert outcomes == {role: _spoken(row, role) for role in outcomes}


@pytest.mark.parametrize(("row", "magic"), MAGICS, ids=[named for _, named in MAGICS])
def test_magics_do_what_the_table_says(stage, row, magic, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("RUNAI_WORKLOAD", "vision/exp1")
    monkeypatch.chdir(tmp_path)
    hooks = sys.displayhook, sys.excepthook
    outcomes = {}
    for role in USERS:
        if not row["route"].startswith("GET"):
            stage.set()
        link = connect(f"{stage.hub.url}{ROOT}", stage.tokens[role])
        shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
        shell.run_cell("%load_ext runai.widgets")
        ran = shell.run_cell(f"{magic}\npass" if magic.startswith("%%") else magic)
        error = ran.error_in_exec
        # A cell is run all the same; what is refused is to measure it.
        refused = "not measured: " in capsys.readouterr().out
        told = "refused" if refused else "let in"
        outcomes[role] = told if error is None else _outcome(_cause(error))
        link.close()
    sys.displayhook, sys.excepthook = hooks

    assert outcomes == {role: _spoken(row, role) for role in outcomes}


def _cause(error: BaseException) -> RunaiError:
    """Return what the platform said before it became a sentence."""
    cause = error if isinstance(error, RunaiError) else error.__context__
    assert isinstance(cause, RunaiError), repr(error)
    return cause


def _outcome(error: RunaiError) -> str:
    # Anything else is about the workload's state, told to those who may.
    return "refused" if isinstance(error, REFUSED) else "let in"


def _spoken(row: dict[str, Any], role: str) -> str:
    return "let in" if expected(row, role) == "let in" else "refused"


# -- buttons -------------------------------------------------------------------------------------

EXP1 = "vision/exp1"
GROWS = "vision/grows"


@pytest.mark.parametrize("page", ["", f"workloads/{EXP1}"], ids=["all", "one"])
@pytest.mark.parametrize("state", ["running", "suspended"])
def test_pages_show_a_button_to_those_alone_who_may_press_it(stage, page, state):
    if state == "suspended":
        stage.ask("owner", method="POST", url=f"api/v1/workloads/{EXP1}/suspend")
    acts = ("suspend" if state == "running" else "resume", "")

    assert stage.offered(page, EXP1, *acts) == may_press(*acts)


@pytest.fixture
def elastic_job(stage: Stage) -> Iterator[None]:
    """An elastic job of ana's that may have another worker, and one less."""
    body: dict[str, Any] = {"project": "vision", "name": "grows", "command": ["sleep", "600"]}
    body |= {"elastic": True, "gpus": 1, "workers": 3, "min_workers": 1}
    stage.ask("owner", method="POST", url="api/v1/workloads", json=body).raise_for_status()
    yield
    stage.ask("hub", method="DELETE", url=f"api/v1/workloads/{GROWS}")


@pytest.mark.parametrize("page", ["", f"workloads/{GROWS}"], ids=["all", "one"])
def test_pages_offer_those_alone_to_scale_who_may(stage, elastic_job, page):
    acts = ("suspend", "scale", "")

    assert stage.offered(page, GROWS, *acts) == may_press(*acts)


@pytest.fixture
def finished_job(stage: Stage) -> Iterator[str]:
    """A job of ana's that has ended, and has left its history to be deleted."""
    body = {"project": "vision", "name": "done", "command": ["true"], "gpus": "0.1"}
    stage.ask("owner", method="POST", url="api/v1/workloads", json=body).raise_for_status()
    yield "vision/done"
    stage.ask("hub", method="DELETE", url="api/v1/workloads/vision/done")


@pytest.mark.parametrize("page", ["", "workloads/vision/done"], ids=["all", "one"])
def test_pages_offer_those_alone_to_delete_what_has_ended_who_may(stage, finished_job, page):
    labelled = re.compile(rf'<button[^>]*data-path="workloads/{finished_job}"[^>]*>Delete<')

    # It is stopped while it runs, and deleted when it has ended, by way of the same route.
    eventually(
        lambda: labelled.search(stage.cookies["admin"].get(f"{ROOT}{page}").text),
        within=60,
        what="it has ended",
    )
    assert stage.offered(page, finished_job, "") == may_press("")


def test_forms_are_shown_to_those_alone_who_may_send_them(stage):
    shown = {
        role: {
            "project": 'data-form="project"' in browser.get(f"{ROOT}projects/vision").text,
            "submit": 'value="vision"' in browser.get(f"{ROOT}submit").text,
        }
        for role, browser in stage.cookies.items()
    }

    assert shown == {
        "owner": {"project": False, "submit": True},
        "member": {"project": False, "submit": True},
        "project admin": {"project": True, "submit": True},
        "admin": {"project": True, "submit": False},
        "outsider": {"project": False, "submit": False},
    }


SECRET_JOB = {"project": "vision", "name": "secret-job", "gpus": "0.5"}
REPORTS = '{"metrics": {"epoch": 1, "overall_epochs": 4, "secret-loss": 0.0123456}}'
RUNS = f"echo '{REPORTS}' > $RUNAI_CHECKPOINT_DIR/progress.json; echo from-its-output; sleep 601"
PROGRAM = {
    "command": ["sh", "-c", RUNS, "secret-argument"],
    "env": {"SECRET": "of-ana"},
    "source": "# secret source",
}
OF_PROGRAMS = (
    *("sleep", "of-ana", "SECRET", "secret source", "secret-argument", "from-its-output"),
    *("secret-loss 0.01235", "secret-program (77)"),  # what it, and its agent, report
)
OF_OTHERS = ("secret-job", '"ana"', '"mia"', ">ana<")


@pytest.fixture
def secret_job(stage: Stage, tmp_path: Path) -> Iterator[str]:
    """A running job of ana's with a program, a directory and output of its own."""
    workdir = tmp_path / "secret-path"
    workdir.mkdir()
    body = {**SECRET_JOB, **PROGRAM, "workdir": str(workdir)}
    stage.ask("owner", method="POST", url="api/v1/workloads", json=body).raise_for_status()

    def wrote() -> bool:
        told = stage.ask("owner", method="GET", url="api/v1/workloads/vision/secret-job/logs")
        return "from-its-output" in told.text

    eventually(wrote, within=60, what="it has written something")
    notice: dict[str, Any] = {"workload": "vision/secret-job", "device": "GPU-0", "rung": "kill"}
    notice |= {"at": time.time(), "text": "uses 9 GiB: secret-program (77) is killed"}
    report = {"node": NODE, "at": time.time(), "interval": 0.1, "devices": [], "samples": []}
    report["notices"] = [notice]
    url = f"api/v1/nodes/{NODE}/samples"
    stage.ask("agent", method="POST", url=url, json=report).raise_for_status()
    yield "secret-path"
    stage.ask("hub", method="DELETE", url="api/v1/workloads/vision/secret-job")


def told_to(stage: Stage, role: str) -> list[tuple[str, str]]:
    """Ask everything that can be asked without changing anything; of streams what comes first."""
    told = []
    for row in ROWS:
        request = asked(row, **stage.places)
        if request["method"] != "GET" and row["route"] != "POST /api/v1/plan":
            continue
        for url in {request["url"], request["url"].replace("exp1", "secret-job")}:
            asking = {**request, "url": url, "params": request["params"] or {}}
            with stage.clients[role].stream(**asking) as reply:
                told.append((f"{request['method']} {url}", _first_of(reply)))
    return told


def _first_of(reply: httpx.Response) -> str:
    if not reply.headers.get("content-type", "").startswith("text/event-stream"):
        return reply.read().decode()
    read = []
    for line in reply.iter_lines():
        read.append(line)
        if not line and any(each.startswith("data:") for each in read):
            break
    return "\n".join(read)


@pytest.mark.parametrize("role", ["outsider", "member", "reader"])
def test_nobody_learns_of_others_more_than_they_may(stage, secret_job, role):
    """Of another project its sums; of one's own what there is, but no program, path or output."""
    secrets = (*OF_PROGRAMS, secret_job, *(OF_OTHERS if role == "outsider" else ()))
    told = told_to(stage, role)
    names = [route for route, text in told if "secret-job" in text and "secret-job" not in route]

    # What is asked for by name is named in the refusal, whether it is there or not.
    leaked = [
        (route, word)
        for route, text in told
        for word in secrets
        if word in text and word not in route
    ]
    assert leaked == []
    # Where they would have been found is asked: members see that the job is there, and how it is.
    assert bool(names) == (role != "outsider")
    for shown in ("1 of 4 epochs", "a process of it is killed"):
        assert any(shown in text for _route, text in told) == (role != "outsider")


def test_a_token_that_only_reads_is_told_none_of_the_secrets_of_its_users_programs(
    stage, secret_job
):
    told = told_to(stage, "owner's reader")

    assert [route for route, text in told if "of-ana" in text or "SECRET" in text] == []
    # All else it reads.
    assert [word for word in ("secret source", "from-its-output") if word not in str(told)] == []


def test_who_may_read_a_program_finds_all_of_these(stage, secret_job):
    """So that none of the words that are looked for above is looked for in vain."""
    found = "".join(text for _route, text in told_to(stage, "owner"))

    assert [word for word in (*OF_PROGRAMS, secret_job) if word not in found] == []
