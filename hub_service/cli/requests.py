"""Requests made from options, with the service's own schema; what it refuses becomes a sentence.

The schema is checked here once more so that a mistake costs no round trip. Values of the
environment never appear in a message.
"""

from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from runai.hub_service.api.schemas import ProjectPut, SubmitRequest
from runai.hub_service.errors import InvalidRequest

__all__ = ["project_put", "submit_request"]

M = TypeVar("M", bound=BaseModel)

_NAMES: Final = "Use small letters, digits and '-', with a letter or digit at both ends"
_HINTS: Final = {
    "name": f"{_NAMES}; at most 38 characters.",
    "project": f"{_NAMES}; at most 24 characters.",
    "parent": f"{_NAMES}; at most 24 characters.",
}
_SECRET: Final = ("env", "source")


def submit_request(**options: Any) -> SubmitRequest:
    """Make a submission; options that are None are left out.

    Raises:
        InvalidRequest: an option's value cannot be meant.
    """
    return _checked(SubmitRequest, {k: v for k, v in options.items() if v is not None})


def project_put(**options: Any) -> ProjectPut:
    """Make a change to a project; every option given is set, None means "none".

    Raises:
        InvalidRequest: an option's value cannot be meant.
    """
    return _checked(ProjectPut, options)


def _checked(model: type[M], fields: dict[str, Any]) -> M:
    try:
        return model(**fields)
    except ValidationError as wrong:
        problem = wrong.errors(include_url=False, include_context=False)[0]
    field = str(problem["loc"][0]) if problem["loc"] else "request"
    words = field.replace("_", " ")
    if field in _HINTS:
        raise InvalidRequest(f"'{problem['input']}' is no {words}.", hint=_HINTS[field])
    shown = "" if field in _SECRET else f" {problem['input']!r}"
    raise InvalidRequest(
        f"The {words}{shown} cannot be: {problem['msg'].lower()}.",
        hint="`--help` shows what is possible.",
    )
