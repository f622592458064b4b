"""FastAPI application: routers, middleware and error handlers.

Every error becomes problem details (RFC 9457) with a status and a `Retry-After` where one applies.
"""

import logging
import math
import re
import secrets
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from runai.hub_service.api.auth.permissions import Action, Actor, authorise
from runai.hub_service.api.metrics import CONTENT_TYPE, Metrics
from runai.hub_service.api.middleware.request_bodies import MOST_BODY_BYTES, WITHIN_S, BoundedBodies
from runai.hub_service.api.middleware.request_limits import RequestLimits
from runai.hub_service.api.middleware.request_log import REQUEST_ID_KEY, RequestLog, SafeHeaders
from runai.hub_service.api.pages import page_routes
from runai.hub_service.api.pages.page_reply import page_reply, with_query
from runai.hub_service.api.pages.templates import templates
from runai.hub_service.api.routes import (
    elastic_workers,
    overview,
    programs,
    projects,
    usage,
    workloads,
)
from runai.hub_service.api.services.platform import Caller, Platform, PlatformDep
from runai.hub_service.wire import problems
from runai.hub_service.wire.base_schema import Problem
from runai.hub_service.wire.errors import InvalidRequest, NotFound, RunaiError, Unavailable
from runai.hub_service.wire.problems import MEDIA_TYPE, problem_of
from runai.hub_service.wire.validation import invalid_request

LOG = logging.getLogger("runai.api")

API = "api/v1"


FREE = ("/health", "/health/live", "/health/ready", *(f"/static/{n}" for n in page_routes.STATIC))
"""Paths without a rate limit: probes and static files."""


def create_app(
    platform: Platform, *, metrics: Metrics | None = None, login: page_routes.Login | None = None
) -> FastAPI:
    """Build the application; without `login` the page accepts tokens only."""
    templates(platform.prefix)  # compile before the first request
    app = FastAPI(
        title="GPU platform",
        version=platform.version,
        openapi_url=f"{platform.prefix}{API}/openapi.json",
        docs_url=None,  # both load their scripts from another host
        redoc_url=None,
        redirect_slashes=False,  # a redirect would go to the Host that the caller sends
    )
    app.add_middleware(BoundedBodies)
    app.add_middleware(RequestLimits, prefix=platform.prefix, free=FREE, refuse=_problem_reply)
    app.add_middleware(SafeHeaders)
    app.state.platform = platform
    app.include_router(_api(), prefix=f"{platform.prefix}{API}")
    app.include_router(_operations(metrics or Metrics()), prefix=platform.prefix.rstrip("/"))
    app.include_router(page_routes.router, prefix=platform.prefix.rstrip("/"))
    if login is not None:
        app.include_router(page_routes.login_router(login), prefix=platform.prefix.rstrip("/"))
    app.add_middleware(RequestLog)
    app.add_exception_handler(RunaiError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_unexpected_error)
    return app


def _api() -> APIRouter:
    # One problem schema for all routes: errors are not FastAPI's HTTPValidationError.
    problem = {
        "description": "What went wrong, in one sentence, and the way out",
        "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}},
    }
    api = APIRouter(
        responses={"default": problem},
        dependencies=[Security(HTTPBearer(auto_error=False, description="A token of JupyterHub"))],
    )
    for part in (overview, projects, workloads, programs, elastic_workers, usage):
        api.include_router(part.router)
    api.include_router(projects.members)
    return api


def _operations(metrics: Metrics) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/health")
    async def health(platform: PlatformDep) -> dict[str, str | int]:
        """Return liveness, the cycle count and the state of both processes; needs no login."""
        health_state: dict[str, str | int] = {
            "status": "cycles fail" if platform.controller.is_failing else "ok",
            "version": platform.version,
            "cycles": platform.controller.changes.version,
            "decision_worker": platform.decision_worker.state(),
        }
        return health_state | ({"proxy": platform.proxy} if platform.proxy else {})

    @routes.get("/health/live")
    async def live() -> dict[str, str]:
        """Return that the process answers: liveness probe, a failure restarts the pod."""
        return {"status": "ok"}

    @routes.get("/health/ready")
    async def ready(platform: PlatformDep, response: Response) -> dict[str, str]:
        """Return whether submissions can be stored and scheduled; 503 if not.

        The service stays ready without its history, and reports that.
        """
        if platform.shutdown.is_set():
            failing_part = "leaving"
        else:
            failing_part = next((part for part, check in platform.checks.items() if check()), "")
        if failing_part:
            response.status_code = 503
            response.headers["Retry-After"] = "2"
            return {"status": "not ready", "because": failing_part}
        return {"status": "ready"} | (
            {"without": "history"} if platform.ledger.unhealthy_reason() else {}
        )

    @routes.get("/metrics")
    async def scrape(platform: PlatformDep, caller: Caller) -> Response:
        """Return Prometheus counters and gauges; workloads are limited to the caller's."""
        authorise(caller, Action.SEE_CLUSTER)
        viewer, unsaved = await platform.viewer(caller), platform.cluster.unsaved_pauses()
        body = metrics.render(viewer, platform.version, platform.decision_worker, unsaved)
        return Response(body, media_type=CONTENT_TYPE)

    return routes


# -- errors become problem details ---------------------------------------------------------------


def _problem_reply(error: RunaiError, status: HTTPStatus | None = None) -> Response:
    """Return an error as problem details; `status` overrides the one of its class."""
    problem = problem_of(error)
    if status is not None:  # statuses that only HTTP has, such as 405
        problem = problem.model_copy(update={"status": status, "title": status.phrase})
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return Response(problem.model_dump_json(), problem.status, headers, MEDIA_TYPE)


async def _on_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RunaiError)
    return _problem_reply(error)


async def _on_validation_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    _drop_traceback(error)
    return _problem_reply(invalid_request(error.errors()))


def _drop_traceback(error: Exception) -> None:
    """Drop the traceback: it references the request body in a cycle that is collected seldom."""
    error.__traceback__ = error.__cause__ = error.__context__ = None


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Describe an error of Starlette: a path without a route, a bad method or body."""
    assert isinstance(error, HTTPException)
    _drop_traceback(error)
    status, allow = HTTPStatus(error.status_code), ""
    # JSON nested beyond Python's recursion, or with integers beyond its digit limit.
    if status is HTTPStatus.BAD_REQUEST:
        return _problem_reply(
            InvalidRequest("The body cannot be read as JSON.", code="invalid_json")
        )
    routes = "The routes are in api/v1/openapi.json."
    if status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        api_error = NotFound(
            f"The request has more than the {MOST_BODY_BYTES >> 20} MiB that one may have.",
            hint="Put large programs into files.",
            code="too_large",
        )
    elif status is HTTPStatus.REQUEST_TIMEOUT:
        api_error = NotFound(
            f"The body of the request has not come whole within {WITHIN_S:.0f} s.",
            hint="Try again, over a faster connection.",
            code="too_slow",
        )
    elif status is HTTPStatus.METHOD_NOT_ALLOWED:
        allow = _methods(request) or (error.headers or {}).get("Allow", "")
        sentence = f"{request.method} is not possible at {request.url.path}."
        api_error = NotFound(sentence, hint=f"Possible: {allow}.", code="no_method")
    elif f"{request.scope['path']}/" == (page_path := request.app.state.platform.prefix):
        return RedirectResponse(with_query(page_path, request))
    else:
        platform, path = request.app.state.platform, request.scope["path"]
        is_page = request.method == "GET" and "text/html" in request.headers.get("Accept", "")
        if is_page and not path.startswith(f"{platform.prefix}api/"):
            return await page_reply(
                request, platform, "problem.html", partial(_raise_no_page, path)
            )
        sentence = f"There is nothing to {request.method} at {request.url.path}."
        return _problem_reply(NotFound(sentence, hint=routes, code="no_route"))
    reply = _problem_reply(api_error, status)
    if allow:
        reply.headers["Allow"] = allow
    return reply


async def _raise_no_page(path: str, _caller: Actor) -> dict[str, Any]:
    raise NotFound(f"There is no page {path}.")


def _methods(request: Request) -> str:
    """Return all methods of a path in OpenAPI; Starlette reports only one route's."""
    paths: dict[str, dict[str, object]] = request.app.openapi()["paths"]
    names = {
        method.upper()
        for path, methods in paths.items()
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), request.url.path)
        for method in methods
    }
    return ", ".join(sorted(names))


async def _on_unexpected_error(request: Request, error: Exception) -> Response:
    """Log an unexpected error under an incident number, and reply with the number alone."""
    incident = secrets.token_hex(4)
    # Starlette runs this outside all middleware, where the context variable is reset.
    request_id = request.scope.get(REQUEST_ID_KEY, "")
    problems.current.set(request_id)
    LOG.error("incident %s: %s %s", incident, request.method, request.url.path, exc_info=error)
    reply = _problem_reply(
        RunaiError(
            f"Something went wrong in the GPU service (incident {incident}).",
            hint="Tell an admin the incident: its log says what happened.",
            code="internal_error",
        )
    )
    reply.headers[problems.HEADER] = request_id
    return reply
