"""`runai schedule --live`: what if, asked of the running platform and shown as tables.

What `--add` and `--set` mean is `wishes`'. Imported by `scheduling` when it is wanted.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import click
from pydantic import ValidationError
from rich.text import Text

from runai.hub_service.api.questions import (
    Effect,
    PlanQuestion,
    ProjectEffect,
    SettingChange,
    WhatIf,
)
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.api.wire import Wire
from runai.hub_service.cli import render
from runai.hub_service.cli.at_work import at_work
from runai.hub_service.cli.wishes import parse_addition, parse_setting
from runai.hub_service.client import Client

T = TypeVar("T", bound=Wire)

_EFFECTS = ("WORKLOAD", "PROJECT", "USER", "GPUS", "NOW", "THEN", "REASON")
_PROJECTS = ("PROJECT", "QUOTA", "FAIR SHARE", "ALLOCATED")


def ask(added: Sequence[str], settings: Sequence[str], ended: Sequence[str], output: str) -> None:
    """Ask what if, and print the answer."""
    question = PlanQuestion(
        add=tuple(_parsed("--add", parse_addition, SubmitRequest, text) for text in added),
        set=tuple(_parsed("--set", parse_setting, SettingChange, text) for text in settings),
        end=tuple(ended),
    )
    with at_work("Asking the scheduler"), Client.discover() as client:
        answer = client.what_if(question)
    if output == "json":
        render.show_json(answer)
        return
    _show(answer)


def _parsed(option: str, parse: Callable[[str], dict[str, object]], kind: type[T], text: str) -> T:
    try:
        return kind.model_validate(parse(text))
    except ValidationError as wrong:
        first = wrong.errors()[0]
        message = f"'{text}' cannot be meant: {first['input']!r}: {first['msg']}"
        raise click.BadParameter(message, param_hint=option) from None
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint=option) from None


def _show(answer: WhatIf) -> None:
    if answer.effects:
        rows = [_effect(effect) for effect in answer.effects]
        render.show_table(_EFFECTS, rows, fold="REASON")
    else:
        click.echo("Nothing that you may see would change.")
    if answer.others:
        counted = ", ".join(f"{count} {outcome}" for outcome, count in answer.others.items())
        click.echo(f"\nAmong workloads of others: {counted}.")
    moved = [project for project in answer.projects if _differs(project)]
    if moved:
        click.echo()
        render.show_table(_PROJECTS, [_project(project) for project in moved])


def _effect(effect: Effect) -> list[str | Text]:
    reason = render.reason(effect.reason)
    return [
        effect.workload,
        effect.project,
        effect.user or "-",
        render.gpus(effect.gpus),
        effect.before or "-",
        effect.after,
        reason,
    ]


def _differs(project: ProjectEffect) -> bool:
    return (project.fair_share_before, project.allocated_before) != (
        project.fair_share,
        project.allocated,
    )


def _project(project: ProjectEffect) -> list[str | Text]:
    return [
        project.name,
        render.quota(project.quota),
        _from_to(project.fair_share_before, project.fair_share),
        _from_to(project.allocated_before, project.allocated),
    ]


def _from_to(before: float, after: float) -> str:
    same = before == after
    return render.gpus(after) if same else f"{render.gpus(before)} -> {render.gpus(after)}"
