"""Requests made from options with the API's own schemas, and its sentences for what they refuse.

Checked here once more: a mistake costs no round trip, and nothing half-made is sent.
"""

from typing import Any

from runai.hub_service.api.schemas import ProjectPut, SubmitRequest
from runai.hub_service.api.validation import checked


def submit_request(**options: Any) -> SubmitRequest:
    """Make a submission; options that are None are left out, so that the service's defaults hold.

    Raises:
        InvalidRequest: an option's value cannot be meant.
    """
    return checked(SubmitRequest, {k: v for k, v in options.items() if v is not None})


def project_put(**options: Any) -> ProjectPut:
    """Make a change to a project; every option given is set, None means "none".

    Raises:
        InvalidRequest: an option's value cannot be meant.
    """
    return checked(ProjectPut, options)
