"""What the API server refuses somebody who asks for something, in the words of the platform."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn

from runai.hub_service.clusters.kubernetes.api import ApiError
from runai.hub_service.clusters.records import WorkloadSpec
from runai.hub_service.errors import Conflict, InvalidRequest, Unavailable


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Turn what the API server answers into the errors of a cluster."""
    try:
        yield
    except ApiError as error:
        _translate(error)


def _translate(error: ApiError) -> NoReturn:
    if error.status in (409, 404):
        raise Conflict(
            f"Kubernetes refuses it: {error.message}.", hint="Look again.", code="changed_meanwhile"
        ) from error
    if error.status in (400, 403, 422):
        raise InvalidRequest(f"Kubernetes refuses it: {error.message}.", hint="") from error
    raise Unavailable(
        f"Kubernetes does not do it now: {error.message}.", hint="Try again in a moment."
    ) from error


def taken(spec: WorkloadSpec, state: str) -> Conflict:
    """Return that a name is taken; `state` is that of whoever has it."""
    return Conflict(
        f"{spec.project} already has a workload named {spec.name}{state}.",
        hint=f"Choose another name, or delete it: runai delete {spec.name} -p {spec.project}",
        code="name_taken",
    )
