"""Every option and argument that takes a number, a name or a duration, with every odd value.

A command ends: done, or with one sentence and a documented exit status; never with a
traceback. The API's fields likewise, in bodies and queries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from runai.hub_service.cli.framework.command_list import cli
from runai.hub_service.wire.explanation_schemas import PlanQuestion
from runai.hub_service.wire.schemas import IdlePut, ProjectPut, ScaleRequest
from runai.hub_service.wire.workload_request import SubmitRequest

pytestmark = pytest.mark.tier("long")

EXAMPLE_SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NUMBERS = st.one_of(
    st.sampled_from(
        ["0", "-1", "1e26", "1e400", "1e-400", "1e999999999", "nan", "inf", "-inf", "0x10", "1_0"]
    ),
    st.sampled_from(["٣", "\u0661\u0660", "\uff11", "½", "1,5", "1.", ".5", "+1", " 1 "]),
    st.sampled_from(["1/0", "50%", "NaN"]),
    st.integers().map(str),
    st.integers(1, 6000).map(lambda digits: "9" * digits),
    st.decimals(allow_nan=False).map(str),
)
DURATIONS = st.one_of(
    st.sampled_from(["0s", "800000d", "999999999d", "9" * 10 + "s", "-1h", "1y", "h", "1h 2m"]),
    st.builds("{}{}".format, st.integers(), st.sampled_from(["s", "m", "h", "d", "S", " d", ""])),
)
SIZES = st.builds("{}{}".format, NUMBERS, st.sampled_from(["G", "M", "TiB", "", "B", "gb"]))
ODD_NAMES = st.one_of(
    st.sampled_from(["", ".", "..", "/", "a/b", "../x", "-", "--", "%2e", "a?b", "a#b", "~", "\\"]),
    st.sampled_from(["none", "x" * 25, "x" * 39, "x" * 5000, "Größe", "a b", "\u202e", "a\nb"]),
    st.text(st.characters(exclude_characters="\x00"), max_size=50),
    st.just("\udcff"),  # a byte of the command line that is no UTF-8
)
ODD_VALUES = NUMBERS | DURATIONS | SIZES | ODD_NAMES

EXCLUDED_COMMANDS = {"up", "exec", "completion", "restore", "backup"}
"""Commands that start programs, replace this process, or take only fixed words and folders."""
VALID_ARGUMENTS = {
    "submit": ["x", "--dry-run", "--", "true"],
    "describe": ["job", "gone"],
    "logs": ["gone"],
    "wait": ["gone"],
    "suspend": ["gone"],
    "resume": ["gone"],
    "scale": ["gone", "--workers", "2"],
    "keep": ["gone"],
    "release": ["gone"],
    "regain": ["gone"],
    "delete": ["gone"],
    "project create": ["x", "--quota", "1"],
    "project set": ["vision"],
    "project delete": ["gone"],
    "project use": ["gone"],
    "config project": ["gone"],
    "user add": ["x", "--password-stdin"],
    "user passwd": ["x", "--password-stdin"],
    "user remove": ["x"],
    "user same-person": ["x"],
    "user forget": ["x"],
    "login": ["http://127.0.0.1:1/", "--token"],
    "schedule": ["--live"],
    "simulate": ["--trace", "jobs.csv", "--cluster", "1x2", "--projects", "projects.yaml"],
}
"""Words with which a command runs when one of its parameters is odd."""


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command and its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        words = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, words)
        elif command is not None and words not in EXCLUDED_COMMANDS:
            yield words, command


def parameters() -> Iterator[Any]:
    """Yield each parameter with a value, of each command."""
    for words, command in commands(cli):
        for parameter in command.params:
            if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count):
                continue
            if isinstance(parameter.type, click.Choice) or parameter.name == "program":
                continue
            yield pytest.param(words, parameter, id=f"{words} {parameter.human_readable_name}")


def command_line_with(words: str, parameter: click.Parameter, value: str) -> list[str]:
    """Return a command line with an odd value of one parameter."""
    valid_words = list(VALID_ARGUMENTS.get(words, []))
    if isinstance(parameter, click.Option):
        option = f"{max(parameter.opts, key=len)}={value}"
        return [*words.split(), option, *valid_words]
    if words == "describe":
        return ["describe", "project", "--", value]
    valid_words[:1] = [value]
    return [*words.split(), *valid_words] if value[:1] != "-" else [*words.split(), "--", value]


@pytest.fixture
def admin(as_user, tmp_path, monkeypatch):
    """An admin's command line, in a folder with a trace and its projects."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text("job,project,submit_s,gpus,duration_s\na,vision,0,1,60\n")
    Path("projects.yaml").write_text("projects:\n  vision:\n    quota: 1\n")
    monkeypatch.setenv("RUNAI_DATA_DIR", str(tmp_path / "platform"))
    return as_user("admin")


@pytest.mark.parametrize(("words", "parameter"), [*parameters()])
def test_odd_command_line_value_is_accepted_or_refused_in_one_sentence(admin, words, parameter):
    @given(ODD_VALUES)
    @EXAMPLE_SETTINGS
    def run_example(value: str) -> None:
        result = admin(*command_line_with(words, parameter, value), stdin="")

        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert result.exit_code in {0, 1, 2}
        assert "Traceback" not in result.output
        if result.exit_code and words != "doctor":
            sentences = re.findall(r"^Error: .*$", result.stderr, re.MULTILINE)
            is_file_error = words == "schedule" and not sentences  # it names the file instead
            assert len(sentences) == 1 or is_file_error, result.stderr
            assert len(result.stderr) < 7000 + len(value)  # the usage and the value

    run_example()


# -- the API -------------------------------------------------------------------------------------

ODD_JSON_VALUES = st.one_of(
    ODD_VALUES.map(lambda text: json.dumps(text, ensure_ascii=True)),
    NUMBERS,
    st.sampled_from(["NaN", "Infinity", "-1e400", "1e400", "true", "null", "[]", "{}", '["", 1]']),
)
BODIES: list[tuple[str, str, type[BaseModel], dict[str, Any]]] = [
    ("POST", "workloads?dry_run=true", SubmitRequest, {"name": "x", "command": ["true"]}),
    ("PUT", "projects/odd", ProjectPut, {"quota": 1}),
    ("POST", "workloads/vision/gone/scale", ScaleRequest, {"workers": 2}),
    ("POST", "plan", PlanQuestion, {}),
    ("PUT", "projects/odd", IdlePut, {}),
]
QUERIES = [
    *("workloads?project", "workloads?user", "workloads?state", "workloads?kind", "workloads?text"),
    *("workloads?mine", "workloads?limit", "workloads?continue", "usage?since", "usage?until"),
    *("usage?step_s", "usage?project", "usage?user", "usage?node", "usage?workload"),
    *("usage/by/project?since", "usage/by/user?until", "history?since"),
    *("workloads/vision/gone?timeout", "workloads/vision/gone?changed_from"),
    *("workloads/vision/gone/logs?tail", "workloads/vision/gone/logs?worker"),
    "workloads/vision/gone/environment?worker",
]


def check_reply(reply: httpx.Response) -> None:
    """Check that a request was answered, or refused in one sentence."""
    assert reply.status_code < 500
    if reply.is_error:
        problem = reply.json()
        assert reply.headers["content-type"] == "application/problem+json"
        assert problem["detail"].endswith(".")
        assert "\n" not in problem["detail"]
        assert len(problem["detail"]) < 1000


@pytest.fixture
def api(service) -> Iterator[httpx.Client]:
    token = {"Authorization": f"Bearer {service.tokens['admin']}"}
    with httpx.Client(base_url=f"{service.url}api/v1/", headers=token, timeout=120) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "is_idle", "fields", "field"),
    [
        pytest.param(method, path, model is IdlePut, fields, name, id=f"{model.__name__} {name}")
        for method, path, model, fields in BODIES
        for name in model.model_fields
    ],
)
def test_odd_field_of_an_api_request_body_is_accepted_or_refused_in_one_sentence(
    api, method, path, is_idle, fields, field
):
    other_fields_json = "".join(
        f", {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items() if key != field
    )

    @given(ODD_JSON_VALUES)
    @EXAMPLE_SETTINGS
    def run_example(value: str) -> None:
        content = f'{{"{field}": {value}{other_fields_json}}}'
        if is_idle:
            content = f'{{"idle_session": {content}}}'
        headers = {"Content-Type": "application/json"}
        check_reply(api.request(method, path, content=content.encode(), headers=headers))

    run_example()


@pytest.mark.parametrize("query", QUERIES)
def test_odd_value_of_an_api_query_is_accepted_or_refused_in_one_sentence(api, query):
    path, _, name = query.partition("?")

    @given(ODD_VALUES.filter(lambda text: len(text) < 4000 and "\udcff" not in text))
    @EXAMPLE_SETTINGS
    def run_example(value: str) -> None:
        check_reply(api.get(path, params={name: value}))

    run_example()


@pytest.mark.parametrize("kind", ["projects", "workloads/vision", "workloads"])
def test_odd_name_in_an_api_path_is_accepted_or_refused_in_one_sentence(api, kind):
    @given(ODD_NAMES.filter(lambda text: len(text) < 1000 and "\udcff" not in text))
    @EXAMPLE_SETTINGS
    def run_example(value: str) -> None:
        name = "".join(f"%{byte:02x}" for byte in value.encode())
        check_reply(api.get(f"{kind}/{name}"))
        check_reply(api.delete(f"{kind}/{name}"))

    run_example()
