"""Conversion of pydantic's validation errors to one sentence with the field and the value.

The API and the clients share it, so that form, magic, command line and curl report the same
sentence.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from runai.hub_service.wire.base_schema import PROJECT_NAME, WORKLOAD_ID
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.workload_request import request_fields

M = TypeVar("M", bound=BaseModel)

_HINTS = {field.name: field.option.hint for field in request_fields()}
_HINTS["parent"] = _HINTS["project"]
MAX_QUOTED_CHARACTERS = 60
_SECRET = frozenset({"env", "source", "command"})
"""Fields with values that may be secret, which errors and logs must not repeat."""


def check_project_name(name: str) -> str:
    """Return a project's name, before it becomes a part of an address.

    Raises:
        InvalidRequest: no project can have it.
    """
    return _check_form(PROJECT_NAME, name, "a project", _HINTS["project"])


def check_workload_id(workload: str) -> str:
    """Return a workload's id, before it becomes a part of an address.

    Raises:
        InvalidRequest: no workload can have it.
    """
    hint = "It is project/name, as `runai list` shows them."
    return _check_form(WORKLOAD_ID, workload, "a workload", hint)


def check_text(name: str, value: str) -> str:
    """Return a value of a query, if it can be sent.

    Raises:
        InvalidRequest: it has letters that UTF-8 lacks, as bytes of a command line may give.
    """
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        text = printable(value, MAX_QUOTED_CHARACTERS)
        raise InvalidRequest(f"{name} is '{text}': it is no UTF-8 text.")
    return value


def _check_form(form: str, text: str, what: str, hint: str) -> str:
    """Return a text; raise InvalidRequest unless it has this form."""
    if not re.fullmatch(form, text):
        escaped = printable(text, MAX_QUOTED_CHARACTERS)
        raise InvalidRequest(f"'{escaped}' cannot be the name of {what}.", hint=hint)
    return text


def checked(
    model: type[M], fields: Mapping[str, Any], keywords: Mapping[str, str] | None = None
) -> M:
    """Validate the fields and return the message; errors name a field by its keyword.

    Raises:
        InvalidRequest: a field's value is invalid.
    """
    try:
        return model(**fields)
    except ValidationError as wrong:
        raise invalid_request([dict(error) for error in wrong.errors()], keywords) from None


def invalid_request(
    errors: Sequence[Mapping[str, Any]], keywords: Mapping[str, str] | None = None
) -> InvalidRequest:
    """Return the error for the first failed validation.

    >>> str(invalid_request([{"type": "greater_than_equal", "loc": ("body", "gpus"), "input": -1,
    ...                       "ctx": {"ge": 0}}]).message)
    'gpus is -1: it must be at least 0.'
    """
    failure = errors[0]
    path = [str(part) for part in failure["loc"] if part not in {"body", "query", "path"}]
    # pydantic adds the type of each union branch to the path, which means nothing to users.
    field = next((part for part in path if part.isidentifier()), "")
    if failure["type"] == "json_invalid":
        return InvalidRequest("The body of the request is not valid JSON.", code="invalid_json")
    if not field and failure["type"] == "value_error":
        # A model validator failed: the error concerns several fields.
        return InvalidRequest(f"Not possible: {_requirement(failure)}.")
    if not field:
        return InvalidRequest("The request has no valid body.", code="invalid_json")
    if failure["type"] == "missing":
        return InvalidRequest(f"{field} is missing.", hint=_hint(field, failure))
    if failure["type"] == "extra_forbidden":
        return InvalidRequest(
            f"There is no field {field}.",
            hint="Is the client newer than the service? The API's fields are in openapi.json.",
            code="unknown_field",
        )
    value_text = "" if field in _SECRET else f" is {_format_value(failure.get('input'))}"
    text = f"{(keywords or {}).get(field, field)}{value_text}: {_requirement(failure)}"
    return InvalidRequest(f"{text}.", hint=_hint(field, failure))


def _hint(field: str, failure: Mapping[str, Any]) -> str:
    """Return the way out; the name in a project's path has the bounds of a project's name."""
    bounds = (failure.get("ctx") or {}).values()
    if field == "name" and any(each in {24, PROJECT_NAME} for each in bounds):
        field = "project"
    return _HINTS.get(field, "")


def _format_value(value: object) -> str:
    """Quote a value in a message, shortened."""
    if isinstance(value, str):
        is_long = len(value) > MAX_QUOTED_CHARACTERS
        return repr(f"{value[: MAX_QUOTED_CHARACTERS - 1]}…" if is_long else value)
    if isinstance(value, int) and abs(value) >= 10**60:  # Python writes no more than 4300 digits
        return "a number of more than 60 digits"
    return str(value) if isinstance(value, int | float) or value is None else "not possible"


_LIMITS = {
    "greater_than_equal": "it must be at least {ge}",
    "less_than_equal": "it must be at most {le}",
    "string_too_long": "it must have at most {max_length} characters",
    "string_pattern_mismatch": "it has characters that are not possible there, or is too long",
    "too_short": "it must not be empty",
}
_KINDS = {
    "int": "it must be a whole number",
    "float": "it must be a number",
    "finite": "it must be a number",
    "datetime": "it must be a time such as 2026-01-31T12:00:00Z",
}


def _requirement(failure: Mapping[str, Any]) -> str:
    """Return what the value must be, as the rest of a sentence."""
    limit = _LIMITS.get(failure["type"])
    if limit is not None:
        return limit.format_map(failure.get("ctx") or {})
    kind = str(failure["type"]).partition("_")[0]
    # Our validators raise a full sentence; pydantic prefixes it with "Value error, ".
    text = str(failure.get("msg", "it is not possible")).removeprefix("Value error, ")
    return _KINDS.get(kind, text[:1].lower() + text[1:])
