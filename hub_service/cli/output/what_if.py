"""`runai schedule --live`: parsers of `--add` and `--set`, the question, and its tables."""

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, get_args

import click
from pydantic import ValidationError
from rich.text import Text

from runai.hub_service.cli.output import render
from runai.hub_service.cli.output.spinner import show_progress
from runai.hub_service.client import Client, texts
from runai.hub_service.client.request_options import quoted
from runai.hub_service.wire.base_schema import Wire
from runai.hub_service.wire.explanation_schemas import (
    Effect,
    PlanQuestion,
    ProjectEffect,
    SettingChange,
    SettingName,
    WhatIf,
)
from runai.hub_service.wire.validation import checked, invalid_request
from runai.hub_service.wire.workload_request import SubmitRequest

_SETTINGS: Final = get_args(SettingName)
_ADDED: Final = re.compile(
    r"^\s*(?P<project>[a-z0-9][-a-z0-9]*)"
    r"(?:\s+(?P<kind>job|session))?"
    r"(?:\s+(?P<workers>\d{1,9})\s*(?:x|workers?\s+of))?"
    r"\s+(?P<amount>[\d.,/¼½¾⅓⅔⅛]{1,30}(?:\s*%)?)\s*(?P<unit>gpus?|[mgt]i?b?|)"
    r"(?:\s+(?P<priority>low|normal|high))?\s*$",
    re.IGNORECASE | re.ASCII,
)


def parse_addition(text: str) -> dict[str, object]:
    """Parse an `--add` text into a request's fields.

    >>> parse_addition("nlp 4 GPUs")
    {'project': 'nlp', 'gpus': '4'}
    >>> parse_addition("nlp 8 workers of 1 GPU high")["workers"]
    8
    >>> parse_addition("vision session 20G")
    {'project': 'vision', 'gpu_memory_mib': '20g', 'kind': 'session'}

    Raises:
        ValueError: the project or the amount is missing.
    """
    matched = _ADDED.match(text)
    if matched is None:
        message = (
            f"{quoted(text)} says no project and amount: write 'nlp 4 GPUs', 'nlp 8 x 1 GPU',"
            " 'nlp session 0.5 GPUs', 'nlp 20G', with low or high at the end for the priority"
        )
        raise ValueError(message)
    amount, unit = matched["amount"], matched["unit"].lower()
    request: dict[str, object] = {"project": matched["project"]}
    if unit in {"", "gpu", "gpus"}:
        request["gpus"] = amount
    else:
        request["gpu_memory_mib"] = amount + unit
    if matched["kind"] is not None and matched["kind"].lower() == "session":
        request["kind"] = "session"
    if matched["workers"] is not None:
        request["workers"] = int(matched["workers"])
    if matched["priority"] is not None:
        request["priority"] = matched["priority"].lower()
    return request


def parse_setting(text: str) -> dict[str, object]:
    """Parse `project.setting=value` into a change's fields; `none` is no bound.

    >>> parse_setting("vision.quota=6")
    {'project': 'vision', 'setting': 'quota', 'value': '6'}
    >>> parse_setting("vision.limit=none")["value"] is None
    True

    Raises:
        ValueError: the setting is unknown.
    """
    name, equals, value = text.partition("=")
    project, _, setting = name.strip().rpartition(".")
    if not equals or not project:
        message = f"{quoted(text)} sets nothing: write PROJECT.SETTING=VALUE, as in vision.quota=6"
        raise ValueError(message)
    if setting not in _SETTINGS:
        message = f"a project has no {quoted(setting)}: settings are {', '.join(_SETTINGS)}"
        raise ValueError(message)
    value = value.strip()
    if value.lower() in {"none", "unlimited"}:
        return {"project": project, "setting": setting, "value": None}
    return {"project": project, "setting": setting, "value": value}


T = TypeVar("T", bound=Wire)

_EFFECT_COLUMNS = ("WORKLOAD", "PROJECT", "USER", "GPUS", "NOW", "THEN", "REASON")
_PROJECT_COLUMNS = ("PROJECT", "QUOTA", "FAIR SHARE", "ALLOCATED")


def send_question(
    added: Sequence[str], settings: Sequence[str], ended: Sequence[str], output: str
) -> None:
    """Send the what-if question and print the answer."""
    fields = {
        "add": tuple(_parsed("--add", parse_addition, SubmitRequest, text) for text in added),
        "set": tuple(_parsed("--set", parse_setting, SettingChange, text) for text in settings),
        "end": tuple(ended),
    }
    question = checked(PlanQuestion, fields)
    with show_progress("Asking the scheduler"), Client.discover() as client:
        answer = client.what_if(question)
    if output in render.DATA:
        render.show_data(answer, output)
        return
    _show_answer(answer)


def _parsed(option: str, parse: Callable[[str], dict[str, object]], kind: type[T], text: str) -> T:
    """Parse one option's text; turn an error into click's, with the option's name."""
    try:
        return kind.model_validate(parse(text))
    except ValidationError as wrong:
        refused = invalid_request([dict(error) for error in wrong.errors()])
        message = f"{quoted(text)} cannot be meant: {refused.message}"
        raise click.BadParameter(message, param_hint=option) from None
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint=option) from None


def _show_answer(answer: WhatIf) -> None:
    """Print the tables of changed workloads and projects."""
    if answer.effects:
        rows = [_effect_row(effect) for effect in answer.effects]
        render.show_table(_EFFECT_COLUMNS, rows, fold="REASON")
    else:
        click.echo("Nothing that you may see would change.")
    if answer.others:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in answer.others.items())
        click.echo(f"\nAmong workloads of others: {counts}.")
    moved = [project for project in answer.projects if _differs(project)]
    if moved:
        click.echo()
        render.show_table(_PROJECT_COLUMNS, [_project_row(project) for project in moved])


def _effect_row(effect: Effect) -> list[str | Text]:
    reason = texts.reason(effect.reason)
    return [
        effect.workload,
        effect.project,
        effect.user or "-",
        texts.gpus(effect.gpus),
        effect.before or "-",
        effect.after,
        reason,
    ]


def _differs(project: ProjectEffect) -> bool:
    return (project.fair_share_before, project.allocated_before) != (
        project.fair_share,
        project.allocated,
    )


def _project_row(project: ProjectEffect) -> list[str | Text]:
    return [
        project.name,
        render.quota(project.quota),
        _from_to(project.fair_share_before, project.fair_share),
        _from_to(project.allocated_before, project.allocated),
    ]


def _from_to(before: float, after: float) -> str:
    is_same = before == after
    return texts.gpus(after) if is_same else f"{texts.gpus(before)} -> {texts.gpus(after)}"
