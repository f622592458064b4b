"""Requests made from options with the API's own schemas, and its sentences for what they refuse.

Checked here once more: a mistake costs no round trip, and nothing half-made is sent.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from runai.hub_service.api.schemas import ProjectPut, SubmitRequest
from runai.hub_service.api.validation import invalid_request

__all__ = ["project_put", "submit_request"]

M = TypeVar("M", bound=BaseModel)


def submit_request(**options: Any) -> SubmitRequest:
    """Make a submission; options that are None are left out, so that the service's defaults hold.

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
        raise invalid_request(wrong.errors()) from None
