"""Permissions on a real JupyterHub: by tokens, cookies, commands, magics and buttons.

`test_authz.py` plays the whole table in process. The rows here show that each kind of token, a
login, a command and a magic reach each of their outcomes through a real hub.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import click
import httpx
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from authz import ACTORS, READERS, ROWS, USERS, actual_answer, expected, name_of, request_arguments
from hub_platform import ACCESS_SCOPE, SERVICE_PATH, SUBMIT_SCOPE, HubPlatform
from runai.hub_service.cli.commands import lifecycle
from runai.hub_service.cli.framework.command_list import cli
from runai.hub_service.cli.framework.error_reporting import ReportedError
from runai.hub_service.wire.errors import Forbidden, NotFound, RunaiError, Unauthenticated
from runai.widgets import connect
from users_hub import ADMIN_SCOPE, HUB_TOKEN, NODE, NODE_TOKEN, READER_TOKEN, log_in, login_cookies
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

EXP1 = "vision/exp1"
WORKLOAD_ROUTE = "/api/v1/workloads/{project}/{name}"
REASONS_BY_ROW = {
    "GET /": "nobody is sent to the login",
    "GET /login": "there is no login without a hub",
    "GET /oauth_callback": "nor an answer of it",
    "GET /workloads/{project}/{name} project=vision name=exp1": "a page that is hidden",
    "GET /api/v1/whoami": "open to a node's token too, nobody is refused",
    "GET /api/v1/worker/target": "open to no token of a hub",
    "GET /api/v1/history since=2026-01-01T00:00:00Z": "an admin's, to read",
    "PUT /api/v1/projects/{name} name=vision quota=3": "an admin's, to change",
    "POST /api/v1/nodes/{node}/samples node=lab at=1 interval=1": "a node's",
    "POST /api/v1/workloads project=vision command=['true']": "asks the hub's token for more",
    f"POST {WORKLOAD_ROUTE}/suspend project=vision name=exp1": "a change that is hidden",
    f"GET {WORKLOAD_ROUTE}/logs project=vision name=exp1": "what a token that only reads may read",
}
"""The rows of the permission table that run here, and the outcome that each adds."""
HUB_ROWS = [row for row in ROWS if name_of(row) in REASONS_BY_ROW]
WITH_COOKIES = ("owner", "member", "project admin", "admin", "outsider")
LOGIN_ROUTES = {
    *("GET /", "GET /oauth_callback", "GET /workloads/{project}/{name}", "GET /api/v1/history"),
    *("POST /api/v1/nodes/{node}/samples", f"POST {WORKLOAD_ROUTE}/suspend"),
}
LOGIN_ROWS = [row for row in HUB_ROWS if row["route"] in LOGIN_ROUTES]
COMMANDS = {
    *("runai whoami", "runai project set vision --quota 3", "runai submit -p vision -- true"),
    f"runai suspend {EXP1}",  # reports each of several names
    *("%runai_submit /bin/true -p vision", f"%runai_logs {EXP1}"),
}
ROW_COMMANDS = [
    (r, command) for r in HUB_ROWS for command in r.get("by", ()) if command in COMMANDS
]
CLI_COMMANDS = [(row, command) for row, command in ROW_COMMANDS if command.startswith("runai ")]
MAGICS = [(row, command) for row, command in ROW_COMMANDS if command.startswith("%")]


@dataclass
class HubStage:
    """A platform with a running job of ana's."""

    hub: HubPlatform
    tokens: dict[str, str]
    clients: dict[str, httpx.Client] = field(default_factory=dict)
    """One for each token and one without: creating a client takes longer than a request."""
    cookies: dict[str, httpx.Client] = field(default_factory=dict)

    def send(self, role: str, **request: Any) -> httpx.Response:
        return self.clients[role].request(**request)

    def restore(self) -> None:
        """Restore what an actor has changed."""
        self.send("admin", method="PUT", url="api/v1/projects/vision", json={"quota": 2.5})
        self.send("owner", method="POST", url=f"api/v1/workloads/{EXP1}/resume")

    def request_of(self, row: dict[str, Any]) -> dict[str, Any]:
        return request_arguments(row, node=NODE)


@pytest.fixture(scope="module")
def stage(real_hub: HubPlatform) -> Iterator[HubStage]:
    # A notebook's token opens the service and submits; a reader's only opens it.
    scopes = {role: [ACCESS_SCOPE, SUBMIT_SCOPE] for role in USERS} | {
        role: [ACCESS_SCOPE] for role in READERS
    }
    scopes["admin"] = [ACCESS_SCOPE, SUBMIT_SCOPE, ADMIN_SCOPE]
    scopes["admin's reader"] = [ACCESS_SCOPE, "admin:users"]
    tokens = {role: real_hub.token(ACTORS[role], *scopes[role]) for role in USERS}
    tokens |= {"hub": HUB_TOKEN, "agent": NODE_TOKEN, "service": READER_TOKEN}
    stage = HubStage(real_hub, tokens)
    with ExitStack() as opened:
        for role in (*tokens, "nobody"):
            headers = {"Authorization": f"Bearer {tokens[role]}"} if role in tokens else {}
            client = httpx.Client(
                base_url=f"{real_hub.url}{SERVICE_PATH}", headers=headers, timeout=60
            )
            stage.clients[role] = opened.enter_context(client)
        for role in WITH_COOKIES:
            browser = httpx.Client(base_url=real_hub.url, follow_redirects=True, timeout=60)
            log_in(opened.enter_context(browser), ACTORS[role])
            xsrf = login_cookies(browser)["_xsrf"].value
            # As the pages' own script sends them.
            browser.headers.update({"X-XSRFToken": xsrf, "Origin": real_hub.url})
            browser.follow_redirects = False
            stage.cookies[role] = browser
        job = {"project": "vision", "name": "exp1", "command": ["sleep", "3600"]}
        stage.send("owner", method="POST", url="api/v1/workloads", json=job).raise_for_status()
        yield stage
        stage.restore()
        for view in stage.send("owner", method="GET", url="api/v1/workloads").json()["items"]:
            stage.send("hub", method="DELETE", url=f"api/v1/workloads/{view['id']}")


# -- routes --------------------------------------------------------------------------------------


def _expected_outcome(row: dict[str, Any], role: str) -> str:
    return "let in" if expected(row, role) == "let in" else "refused"


@pytest.mark.parametrize(
    ("rows", "roles", "outcome"),
    [
        pytest.param(HUB_ROWS, (*USERS, "hub", "agent", "service", "nobody"), expected, id="token"),
        pytest.param(LOGIN_ROWS, WITH_COOKIES, expected, id="login"),
        pytest.param([row for row, _ in CLI_COMMANDS], USERS, _expected_outcome, id="command"),
    ],
)
def test_permission_rows_tested_on_a_hub_cover_each_outcome_of_each_role(rows, roles, outcome):
    """A new outcome in the table needs a row here, too."""
    assert {name_of(row) for row in HUB_ROWS} == REASONS_BY_ROW.keys()
    assert {(role, outcome(row, role)) for row in rows for role in roles} == {
        (role, outcome(row, role)) for row in ROWS for role in roles
    }


@pytest.mark.parametrize("row", HUB_ROWS, ids=name_of)
def test_hub_tokens_have_exactly_the_permissions_of_the_permission_table(stage, row):
    request = stage.request_of(row)
    outcomes = {}
    for role in stage.clients:
        if request["method"] != "GET":
            stage.restore()
        with stage.clients[role].stream(**request) as reply:
            outcomes[role] = actual_answer(reply)

    assert outcomes == {role: expected(row, role) for role in outcomes}


@pytest.mark.parametrize("row", LOGIN_ROWS, ids=name_of)
def test_browser_logins_have_exactly_the_permissions_of_the_permission_table(stage, row):
    request = stage.request_of(row)
    request["url"] = f"{SERVICE_PATH}{request['url']}"
    outcomes, forged = {}, {}
    for role in WITH_COOKIES:
        if request["method"] != "GET":
            stage.restore()
            forged[role] = stage.cookies[role].request(
                **request, headers={"Origin": "https://evil.example"}
            )
        with stage.cookies[role].stream(**request) as reply:
            outcomes[role] = actual_answer(reply)

    assert outcomes == {role: expected(row, role) for role in outcomes}
    # A request of another site's page with the same cookie changes nothing.
    assert {reply.json()["code"] for reply in forged.values()} <= {"cross_site"}


# -- the command line, and notebooks -------------------------------------------------------------


REFUSED = (Forbidden, NotFound, Unauthenticated)


@pytest.mark.parametrize(
    ("row", "command"), CLI_COMMANDS, ids=[command for _, command in CLI_COMMANDS]
)
def test_cli_commands_are_refused_exactly_as_the_permission_table_says(
    stage, row, command, monkeypatch, tmp_path, capsys
):
    reported: list[RunaiError] = []
    # Each of several names is reported separately.
    monkeypatch.setattr(lifecycle, "report", lambda error, **_: reported.append(error))
    monkeypatch.setenv("RUNAI_API_URL", f"{stage.hub.url}{SERVICE_PATH}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    outcomes = {}
    for role in (*USERS, "nobody"):
        if not row["route"].startswith("GET"):
            stage.restore()
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", stage.tokens.get(role, "made-up"))
        try:
            reported.clear()
            cli.main(shlex.split(command)[1:], prog_name="runai", standalone_mode=False)
            outcomes[role] = _outcome(reported[0]) if reported else "let in"
        except ReportedError as refused:
            outcomes[role] = _outcome(refused.error)
        except click.exceptions.Exit:
            outcomes[role] = "let in"
        assert "Traceback" not in "".join(capsys.readouterr())

    assert outcomes == {role: _expected_outcome(row, role) for role in outcomes}


@pytest.mark.parametrize(("row", "magic"), MAGICS, ids=[command for _, command in MAGICS])
def test_notebook_magics_are_refused_exactly_as_the_permission_table_says(
    stage, row, magic, monkeypatch, tmp_path
):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    hooks = sys.displayhook, sys.excepthook
    outcomes = {}
    for role in USERS:
        if not row["route"].startswith("GET"):
            stage.restore()
        link = connect(f"{stage.hub.url}{SERVICE_PATH}", stage.tokens[role])
        shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
        shell.run_cell("%load_ext runai.widgets")
        error = shell.run_cell(magic).error_in_exec
        outcomes[role] = "let in" if error is None else _outcome(_cause(error))
        link.close()
    sys.displayhook, sys.excepthook = hooks

    assert outcomes == {role: _expected_outcome(row, role) for role in outcomes}


def _cause(error: BaseException) -> RunaiError:
    """Return the platform's own error, before the client made a sentence of it."""
    cause = error if isinstance(error, RunaiError) else error.__context__
    assert isinstance(cause, RunaiError), repr(error)
    return cause


def _outcome(error: RunaiError) -> str:
    # Any other error is about the workload's state, reported to callers with the permission.
    return "refused" if isinstance(error, REFUSED) else "let in"


# -- buttons -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["", f"workloads/{EXP1}"], ids=["front page", "workload page"])
def test_pages_show_workload_buttons_only_to_permitted_roles(stage, page):
    """Each role's login is tested here; each state of a workload in `test_page_buttons.py`."""
    button_pattern = re.compile(rf'<button[^>]*data-path="workloads/{EXP1}(?:/(\w+))?\?uid=')
    routes = {"suspend": f"POST {WORKLOAD_ROUTE}/suspend", "": f"DELETE {WORKLOAD_ROUTE}"}
    rows = {row["route"]: row for row in ROWS}
    stage.restore()

    def offered(role: str) -> set[str]:
        return set(button_pattern.findall(stage.cookies[role].get(f"{SERVICE_PATH}{page}").text))

    eventually(lambda: offered("admin") == {*routes}, within=60, what="the job runs")
    assert {role: offered(role) for role in WITH_COOKIES} == {
        role: {act for act, route in routes.items() if expected(rows[route], role) == "let in"}
        for role in WITH_COOKIES
    }


def test_pages_show_project_and_submit_forms_only_to_permitted_roles(stage):
    forms = {
        role: {
            "project": 'data-form="project"' in browser.get(f"{SERVICE_PATH}projects/vision").text,
            "submit": 'value="vision"' in browser.get(f"{SERVICE_PATH}submit").text,
        }
        for role, browser in stage.cookies.items()
    }

    assert forms == {
        "owner": {"project": False, "submit": True},
        "member": {"project": False, "submit": True},
        "project admin": {"project": True, "submit": True},
        "admin": {"project": True, "submit": False},
        "outsider": {"project": False, "submit": False},
    }


SECRET_JOB = {"project": "vision", "name": "secret-job", "gpus": "0.5"}
PROGRESS_JSON = '{"metrics": {"epoch": 1, "overall_epochs": 4, "secret-loss": 0.0123456}}'
SHELL_SCRIPT = (
    f"echo '{PROGRESS_JSON}' > $RUNAI_CHECKPOINT_DIR/progress.json; echo from-its-output; sleep 601"
)
PROGRAM = {
    "command": ["sh", "-c", SHELL_SCRIPT, "secret-argument"],
    "env": {"SECRET": "of-ana"},
    "source": "# secret source",
}
PROGRAM_SECRETS = (
    *("sleep", "of-ana", "SECRET", "secret source", "secret-argument", "from-its-output"),
    *("secret-loss 0.01235", "secret-program (77)"),  # reported by the job and by its agent
)
JOB_AND_USER_NAMES = ("secret-job", '"ana"', '"mia"', ">ana<")


@pytest.fixture(scope="module")
def secret_job(stage: HubStage, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run a job of ana's with its own program, directory and output."""
    workdir = tmp_path_factory.mktemp("work") / "secret-path"
    workdir.mkdir()
    body = {**SECRET_JOB, **PROGRAM, "workdir": str(workdir)}
    stage.send("owner", method="POST", url="api/v1/workloads", json=body).raise_for_status()

    def has_output() -> bool:
        logs = stage.send("owner", method="GET", url="api/v1/workloads/vision/secret-job/logs")
        return "from-its-output" in logs.text

    eventually(has_output, within=60, what="it has written something")
    notice: dict[str, Any] = {"workload": "vision/secret-job", "device": "GPU-0", "rung": "kill"}
    notice |= {"at": time.time(), "text": "uses 9 GiB: secret-program (77) is killed"}
    report = {"node": NODE, "at": time.time(), "interval": 0.1, "devices": [], "samples": []}
    report["notices"] = [notice]
    url = f"api/v1/nodes/{NODE}/samples"
    stage.send("agent", method="POST", url=url, json=report).raise_for_status()
    return "secret-path"


def replies_to(stage: HubStage, role: str) -> list[tuple[str, str]]:
    """Send every request that changes nothing; read only the first piece of a stream."""
    replies = []
    for row in ROWS:
        request = stage.request_of(row)
        if request["method"] != "GET" and row["route"] != "POST /api/v1/plan":
            continue
        for url in {request["url"], request["url"].replace("exp1", "secret-job")}:
            stream_request = {**request, "url": url, "params": request["params"] or {}}
            with stage.clients[role].stream(**stream_request) as reply:
                replies.append((f"{request['method']} {url}", _body_or_first_event(reply)))
    return replies


def _body_or_first_event(reply: httpx.Response) -> str:
    if not reply.headers.get("content-type", "").startswith("text/event-stream"):
        return reply.read().decode()
    read = []
    for line in reply.iter_lines():
        read.append(line)
        if not line and any(each.startswith("data:") for each in read):
            break
    return "\n".join(read)


@pytest.mark.parametrize("role", ["outsider", "member", "reader"])
def test_unprivileged_roles_read_no_secrets_of_other_users(stage, secret_job, role):
    """A user sees only the sums of another project.

    Of the own project a user sees every workload, but no program, path or output.
    """
    secrets = (*PROGRAM_SECRETS, secret_job, *(JOB_AND_USER_NAMES if role == "outsider" else ()))
    replies = replies_to(stage, role)
    names = [route for route, text in replies if "secret-job" in text and "secret-job" not in route]

    # The refusal repeats the requested name, whether the workload exists or not.
    leaked = [
        (route, word)
        for route, text in replies
        for word in secrets
        if word in text and word not in route
    ]
    assert leaked == []
    # The requests reach the places of the words: members see that the job exists, and its state.
    assert bool(names) == (role != "outsider")
    for phrase in ("1 of 4 epochs", "a process of it is killed"):
        assert any(phrase in text for _route, text in replies) == (role != "outsider")


def test_read_only_token_gets_no_secrets_of_its_users_own_programs(stage, secret_job):
    replies = replies_to(stage, "owner's reader")

    assert [route for route, text in replies if "of-ana" in text or "SECRET" in text] == []
    # It reads everything else.
    assert [word for word in ("secret source", "from-its-output") if word not in str(replies)] == []


def test_job_owner_reads_every_secret_of_the_own_job(stage, secret_job):
    """A permitted reader finds each of the words, so the search above can fail."""
    all_text = "".join(text for _route, text in replies_to(stage, "owner"))

    assert [word for word in (*PROGRAM_SECRETS, secret_job) if word not in all_text] == []
