"""The options of a request, as command line and magics have them, made of its declared fields."""

import os
import re
from collections.abc import Mapping
from typing import Any, Final

import click

from runai.hub_service.wire.amounts import AmountKind, clock_text
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.workload_request import (
    RequestField,
    RequestOption,
    request_fields,
)

_MAX_QUOTED_LENGTH: Final = 60
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def quoted(value: object) -> str:
    """Return what a user typed in quotes, at most 60 characters of it."""
    return f"'{printable(str(value), _MAX_QUOTED_LENGTH)}'"


class ParamType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Base of the parameter types, each with its placeholder in the help."""

    name = "value"
    metavar = ""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return the placeholder of a value."""
        return self.metavar or None


class AmountType(ParamType):
    """An amount, which `wire.amounts` parses; with `or_none` also the word none."""

    def __init__(self, kind: AmountKind, *, or_none: bool = False) -> None:
        """Take the kind of the amount."""
        self.kind, self.or_none = kind, or_none
        self.metavar = f"{kind.metavar}|none" if or_none else kind.metavar

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Parse the amount; `none` stays a word, since None means "option not given"."""
        if self.or_none and str(value).lower() == "none":
            return "none"
        try:
            return self.kind.parse(value)
        except ValueError as wrong:
            self.fail(f"{quoted(value)} is not a valid {self.kind.noun}: {wrong}", param, ctx)


class EnvType(ParamType):
    """NAME=VALUE, or NAME to pass on the caller's own value."""

    metavar = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Parse one pair; error messages never contain the value."""
        if isinstance(value, tuple):  # click converts a default a second time
            return value
        name, equals, content = str(value).partition("=")
        if not _ENV_NAME.fullmatch(name):
            self.fail(f"{quoted(name)} is not a valid variable: write NAME=VALUE", param, ctx)
        if not equals:
            own = os.environ.get(name)
            if own is None:
                self.fail(f"{name} is not set here: write {name}=VALUE", param, ctx)
            return name, own
        return name, content


class _RenamedOption(click.Option):
    """An option with its name in the original `runai` beside ours; the help leaves that out."""

    def __init__(self, *names: Any, original: str, **settings: Any) -> None:
        """Take `original` as one more name; "": there is none."""
        super().__init__(*names, **settings)
        self.original = original

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Teach the parser all names."""
        super().add_to_parser(parser, ctx)
        if self.original:
            action = "append" if self.multiple else "store"
            parser.add_option(self, [self.original], dest=self.name, action=action, nargs=1)


def request_options(
    types: Mapping[str, click.ParamType] | None = None,  # type: ignore[type-arg]
) -> list[click.Option]:
    """Return an option for each field of a request that has flags; `types` by field's name."""
    return [
        _option(field, field.option, (types or {}).get(field.name))
        for field in request_fields()
        if field.option.flags
    ]


def _option(
    field: RequestField,
    option: RequestOption,
    given_type: click.ParamType | None,  # type: ignore[type-arg]
) -> click.Option:
    settings: dict[str, Any] = {"help": option.help, "original": option.original}
    if field.is_flag:
        return _RenamedOption([field.name, *option.flags], is_flag=True, **settings)
    if field.is_mapping:
        settings |= {"type": EnvType(), "multiple": True}
    elif field.kind is not None:
        settings["type"] = AmountType(field.kind)
    elif field.bounds is not None:
        settings |= {"type": click.IntRange(*field.bounds), "metavar": "N"}
    else:
        settings["metavar"] = option.metavar
    if given_type is not None:
        settings["type"] = given_type
    if type(field.default) is int:
        default = field.default if field.bounds else clock_text(field.default)
        settings |= {"default": default, "show_default": True}
    return _RenamedOption([field.name, *option.flags], **settings)


def request_values(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the options give; the service has defaults for the rest."""
    values: dict[str, Any] = {}
    for field in request_fields():
        value = params.get(field.name)
        if field.is_mapping:
            value = dict(value or ())
        elif field.option.flag_value:
            value = field.option.flag_value if value else field.default
        if value is not None and value is not False:
            values[field.name] = value
    return values
