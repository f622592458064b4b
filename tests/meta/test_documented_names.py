"""Names in the documentation exist in the code, and its tables state the code's defaults.

docs/cli.md is made from the code, so it is left out.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import click
import pytest
import yaml
from starlette.routing import Match

from runai.embedded.proxy.caddy import CaddyProxy
from runai.embedded.settings import ANSWERS_WITHIN_S
from runai.hub_service.api.app import create_app
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.cli.framework.command_list import cli
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import IMAGE
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler import SHIPPED, Policy
from runai.hub_service.server.settings import Config
from runai.widgets.magics import SUBMIT, RunaiMagics

ROOT = Path(__file__).parents[2]
PACKAGES = ("elastic", "embedded", "hub_service", "lab", "spawner", "widgets")
FOLDERS = (*PACKAGES, ".ci", "benchmarks", "docs", "examples", "helm", "images", "tests")
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")))
    if path.name != "cli.md"
}
# The left columns of this page are the original's commands and options.
PAGES["docs/migration.md"] = re.sub(
    r"^\| `-?-?(runai |-).*?\|(?= )", "|", PAGES["docs/migration.md"], flags=re.MULTILINE
)
FILES = {
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if "__pycache__" not in path.parts
} | {path.name for path in ROOT.iterdir()}
SOURCES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in sorted(FILES)
    if name == "Makefile" or Path(name).suffix in {".py", ".yaml", ".tpl", ".txt", ".Dockerfile"}
}
CODE = "\n".join(
    text
    for name, text in SOURCES.items()
    if not name.startswith(("docs/", "tests/")) or name.startswith("tests/own_")
)
VALUES = yaml.safe_load(SOURCES["helm/values.yaml"])
APP = create_app(cast("Platform", SimpleNamespace(prefix="/services/runai/", version="docs")))

READER_FILES = {
    *("SNAPSHOT.json", "policy.yaml", "prepare.py", "saves.py", "sweep.py", "train.py"),
    *(
        "hub.yaml",
        "images.yaml",
        "jobs.yaml",
        "projects.yaml",
        "runai.yaml",
        "runai-a.yaml",
        "values.yaml",
    ),
    *("idle_culler_config.py", "jupyterhub_config.py"),
    *("study.ipynb", "study.run-1-3.ipynb", "study.run-1.ipynb", "study.run-2.ipynb"),
    *("left_over.json", "progress.json", "state.json", "status/WORKER.json", "target.json"),
    *("api/v1/openapi.json", "docs/snapshots/NAME.json"),
}
"""Names of files that readers write and programs make, of a route, and of a kind of file."""
FOREIGN_OPTIONS = {
    "--api-versions",
    "--build-arg",
    "--lr",
    "--nnodes",
    "--standalone",
    "--temp",
    "--timeout",
}
"""Options of other programs that sentences name."""
OTHER_PROGRAMS = re.compile(
    r"(?:kubectl|helm|docker|systemctl|torchrun|useradd|pip|python3? -m (?:pip|venv))"
    r" (?:[^`\n]*\\\n)*[^`\n]*"
)
"""Command lines of other programs, to the end of the line."""
HINTS = "hub_service/(cli/doctor|clusters/kubernetes)/"
"""Code whose sentences name values of the chart."""


def found_commands(
    group: click.Group, *path: str
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with its words."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command
        if isinstance(command, click.Group):
            yield from found_commands(command, *path, name)
        else:
            yield (*path, name), command


COMMANDS = dict(found_commands(cli))


class Kind(NamedTuple):
    """Names of one kind: how pages write them, and whether the code has one."""

    written: str
    exists: Callable[[str], bool]
    texts: dict[str, str] = PAGES


def is_file(name: str) -> bool:
    name = re.sub(r"^(\.\./)+", "", name).rstrip("/")
    return name in READER_FILES or any(file == name or file.endswith(f"/{name}") for file in FILES)


def is_value(name: str) -> bool:
    value = VALUES
    for part in name.split("."):
        if part not in (value or ()):
            return False
        value = value[part]
    return True


def is_route(name: str) -> bool:
    """Return True if the service answers this path, relative or not, with this method."""
    method, _, path = name.rpartition(" ")
    path = "/services/runai/" + path.removeprefix("/services/runai").lstrip("/").split("?")[0]
    scope = {"type": "http", "path": path, "method": method or "GET", "headers": []}
    return any(route.matches(scope)[0] == Match.FULL for route in APP.routes)


def is_trait(name: str) -> bool:
    owner, _, trait = name.partition(".")
    if owner == "CaddyProxy":
        return trait in CaddyProxy.class_trait_names()
    from runai.spawner.kubernetes import RunaiKubeSpawner

    return trait in RunaiKubeSpawner.class_trait_names()


def is_option(name: str) -> bool:
    named = any(name in option.opts for command in COMMANDS.values() for option in command.params)
    return named or f'"{name}"' in CODE or name in FOREIGN_OPTIONS


def is_in_code(name: str) -> bool:
    return bool(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", CODE))


DEVELOPERS = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in ("Makefile", "pyproject.toml", ".ci/run", "CONTRIBUTING.md")
} | {
    name: text for name, text in {**PAGES, **SOURCES}.items() if re.match("docs/|benchmarks/", name)
}
"""Texts that name tests, files and loggers for developers."""
LOGGERS = set(re.findall(r'getLogger\("([^"]+)"\)', CODE))
TESTS = {path.stem for path in (ROOT / "tests").rglob("test_*.py")} | {
    name
    for source, text in SOURCES.items()
    if source.startswith(("tests/", "benchmarks/", "docs/"))
    for name in re.findall(r"def (test_\w+)\(", text)
}

KINDS = {
    "tests": Kind(r"\b(test_\w*[a-z0-9])\b", TESTS.__contains__, DEVELOPERS),
    "loggers": Kind(r"\blogger\W{1,12}(runai[.\w]*\w)", LOGGERS.__contains__, DEVELOPERS),
    "options": Kind(
        r"(?<![\w-])(--[a-z][a-z-]+)",
        is_option,
        {page: OTHER_PROGRAMS.sub("", text) for page, text in PAGES.items()},
    ),
    "variables": Kind(r"\b(RUNAI_[A-Z_]*[A-Z])\b", is_in_code),
    "routes": Kind(
        r"`((?:[A-Z]+ )?(?:/services/runai/|/?api/v1/|/?health|/?metrics)[\w/{}.?=&]*)`",
        is_route,
    ),
    "files": Kind(
        r"(?<![\w./:~-])((?:\w[\w-]*/|\.\./)*[\w-]+\.(?:py|ipynb|yaml|Dockerfile|md|json))\b",
        is_file,
    ),
    "folders": Kind(rf"`((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*)`", is_file),
    "values of the chart": Kind(
        rf"`((?:{'|'.join(VALUES)})\.(?!yaml|sqlite)[a-zA-Z.]+)(?:: \S+)?`", is_value
    ),
    "values of the chart in hints": Kind(
        rf"\"(?:[^\"\n]*[ '])?((?:{'|'.join(VALUES)})"
        r"\.(?!yaml|sqlite|jupyter)[a-zA-Z.]*[a-zA-Z])\b(?!\()",
        is_value,
        {name: text for name, text in SOURCES.items() if re.match(HINTS, name)},
    ),
    "labels and annotations": Kind(r"(?<![\w./-])(runai/[a-z][a-z-]+[a-z])", is_in_code),
    "settings of JupyterHub": Kind(r"\bc\.((?:CaddyProxy|RunaiKubeSpawner)\.\w+)", is_trait),
    "commands of make": Kind(
        r"(?m)(?:`|^)make ([a-z-]+)",
        lambda name: bool(re.search(rf"^{name}:.*##", SOURCES["Makefile"], re.MULTILINE)),
    ),
    "files in code": Kind(
        r"(?<![\w./-])((?:docs|clusters|hub_service|helm|images|embedded)/[\w/]+\.(?:md|py|yaml))\b",
        is_file,
        {
            name: text
            for name, text in (SOURCES | DEVELOPERS).items()
            if not name.startswith("tests/")
        },
    ),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_names_in_the_documentation_exist_in_the_code(kind: Kind):
    named = {name for text in kind.texts.values() for name in re.findall(kind.written, text)}
    unknown = {name for name in named if not kind.exists(name)}

    assert named
    assert [
        f"{page}: {name}"
        for page, text in kind.texts.items()
        for name in sorted(unknown & set(re.findall(kind.written, text)))
    ] == []


FENCE = re.compile(r"^ *```(?P<language>\S*)\n(?P<text>.*?)^ *```", re.MULTILINE | re.DOTALL)


def command_lines() -> Iterator[object]:
    """Yield each command line and magic in a shell block, and each command in a sentence."""
    for page, text in PAGES.items():
        found = dict[str, None]()
        for block in FENCE.finditer(text):
            if block["language"] in {"", "sh", "bash", "console", "python", "ini"}:
                for line in block["text"].splitlines():
                    command = re.sub(r"^(ExecStart=|sudo )?(/opt/runai/bin/)?", "", line.strip())
                    if re.match("runai |%%?runai_", command) and "..." not in command:
                        found[command] = None
        sentences = FENCE.sub("", text)
        found |= dict.fromkeys(
            re.findall(r"`(?:sudo )?((?:runai (?!\d)|%runai_)[^`\n?[]+)`", sentences)
        )
        yield from (pytest.param(line, id=f"{page}: {line}") for line in found)


@pytest.mark.parametrize("line", list(command_lines()))
def test_documented_command_lines_are_parsed(line: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NAME", "a value of yours")  # `-e NAME` passes it on
    words = shlex.split(line, comments=True)
    if line.startswith("%"):
        magic = getattr(RunaiMagics, words[0].lstrip("%"))
        arguments = words[1 : words.index("--")] if "--" in words else words[1:]
        if magic is RunaiMagics.runai_submit:
            SUBMIT.make_context(SUBMIT.name, arguments)  # raises click.UsageError
        elif arguments:
            magic.parser.parse_args(arguments)  # raises UsageError
        return
    command: click.Command = cli
    context = click.Context(cli, info_name="runai")
    del words[0]
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        assert found, f"there is no command {words[0]}"
        command, context = found, click.Context(found, info_name=words.pop(0), parent=context)
    if isinstance(command, click.Group):
        return  # a sentence names it
    if command.name == "submit" and "--" not in words:
        words += ["--", "true"]  # a sentence names the command and an option
    with contextlib.suppress(click.MissingParameter):
        command.make_context(context.info_name, words, parent=context.parent)


def test_every_command_and_option_is_used_by_a_test():
    tests = "\n".join(text for name, text in SOURCES.items() if re.match("tests/(?!meta/)", name))
    for path, command in COMMANDS.items():
        words = r"[\"', ]+".join(map(re.escape, path))
        unused = [
            option.opts[-1]
            for option in command.params
            if isinstance(option, click.Option)
            and not any(re.search(rf"[\"' ]{o}[\"'= ]", tests) for o in option.opts)
        ]

        assert re.search(rf"(?:[(\[*]\s*[\"']|\brunai[\"', ]+){words}\b", tests), path
        assert unused == [], path


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells of each row of a page's tables by each name in the first cell."""
    found = dict[str, list[str]]()
    for line in PAGES[page].splitlines():
        if line.startswith("| `"):
            first, *cells = line.strip("| ").split(" | ")
            found = dict.fromkeys(re.findall(r"`(\w+)`", first), cells) | found
    return found


def formatted(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(map(formatted, value))
    return "none" if value is None else f"`{value}`" if isinstance(value, str) else str(value)


def test_policy_table_states_the_default_and_shipped_values_of_each_field():
    policy_values = {
        field.name: (formatted(field.default), formatted(getattr(SHIPPED, field.name)))
        for field in fields(Policy)
    }
    documented = {
        name: tuple(cells[:2]) for name, cells in rows("docs/policy.md").items() if len(cells) == 3
    }

    assert SHIPPED.phases == (*Policy().phases, "consolidate")
    assert documented == policy_values | {
        "phases": (policy_values["phases"][0], "these and `consolidate`")
    }


REQUIRED = {"RUNAI_DATA_DIR": "/data", "RUNAI_HUB_TOKEN": "secret"}
LOCAL = Config.from_environment(REQUIRED)
KUBERNETES = Config.from_environment(REQUIRED | {"RUNAI_CLUSTER": "kubernetes"}).kube_config
assert KUBERNETES
SPEC = ProjectSpec("vision")
DEFAULTS: dict[str, dict[str, object]] = {
    "docs/reference.md": {
        "RUNAI_ANSWERS_WITHIN": ANSWERS_WITHIN_S,
        "RUNAI_GPU_SHARING": LOCAL.gpu_sharing,
        "RUNAI_NAMESPACE": KUBERNETES.own_namespace,
        "RUNAI_JOBS_TTL": int(LOCAL.retention.max_age_s),
        "RUNAI_JOBS_KEPT": LOCAL.retention.max_finished,
        "RUNAI_JOB_FILES": LOCAL.job_files,
        "RUNAI_RESERVATION_IMAGE": IMAGE,
        "RUNAI_DEFAULT_PROJECT": KUBERNETES.default_project,
        "RUNAI_AGENT_ACCOUNT": KUBERNETES.agent_account.partition(":")[2],
        "RUNAI_ELASTIC_GROW_EVERY": int(LOCAL.elastic.grow_every_s),
        "RUNAI_ELASTIC_RESIZE_COST": LOCAL.elastic.resize_cost_s,
        "RUNAI_ELASTIC_PAYS_FROM": LOCAL.elastic.pays_from,
        "RUNAI_USER_CALLS": LOCAL.allowance.calls_per_s,
        "RUNAI_USER_OPEN": LOCAL.allowance.open_at_once,
        "RUNAI_USER_JOBS": LOCAL.allowance.unfinished_jobs,
        "RUNAI_SUBMISSIONS_AT_ONCE": LOCAL.allowance.submissions_at_once,
        "RUNAI_LOG_FORMAT": LOCAL.log_format,
        "RUNAI_LOG_LEVEL": LOCAL.log_level,
    },
    "docs/projects.md": {
        "quota": SPEC.quota,
        "priority": SPEC.priority,
        "never_lent": SPEC.never_lent,
        "min_runtime": SPEC.min_runtime,
    },
}


@pytest.mark.parametrize(
    ("page", "name", "value"),
    [
        pytest.param(page, name, value, id=name)
        for page, table in DEFAULTS.items()
        for name, value in table.items()
    ],
)
def test_documentation_tables_state_the_default_values_of_the_code(
    page: str, name: str, value: object
):
    assert re.search(rf"(?<![\w.]){re.escape(str(value))}(?![\w.])", rows(page)[name][-1])


def test_documentation_sentences_state_the_defaults_of_limit_variables():
    stated_defaults = [
        (page, name, int(number.replace(",", "")))
        for page, text in PAGES.items()
        for number, name in re.findall(r"(\d[\d,]*)[^|(\n]*\(`(RUNAI_\w+)`\)", text)
    ]
    defaults = DEFAULTS["docs/reference.md"]
    day_s = 86_400

    assert len(stated_defaults) > 5
    assert [
        (page, name, number)
        for page, name, number in stated_defaults
        if defaults[name] not in {number, number * day_s}
    ] == []


QUICK_STARTS = [name for name in PAGES if name == "README.md" or "/tutorials/" in name]


@pytest.mark.parametrize("page", QUICK_STARTS)
def test_quick_start_scripts_exist_or_are_written_by_an_earlier_step(page: str):
    text = PAGES[page]
    saved_scripts = re.findall(r"(?:Save it as|Write) `(\S+)`|' > (\S+\.py)$", text, re.MULTILINE)
    named_scripts = re.findall(r"(?<![\w/])(?:python|%runai_submit) (\S+\.py)", text)

    assert set(named_scripts) <= FILES | {name for names in saved_scripts for name in names}
