"""The API as one application: its routes, and what becomes of everything that goes wrong.

Knows which routers there are. Rules, sentences and statuses are elsewhere (`permissions`,
`validation`, `problems`). Made and served by the composition root.
"""

import logging
import secrets

from fastapi import APIRouter, FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from runai.hub_service.api import overview, page, projects, usage, workloads
from runai.hub_service.api.permissions import Action, authorise
from runai.hub_service.api.platform import Caller, On, Platform
from runai.hub_service.api.problems import MEDIA_TYPE, problem_of
from runai.hub_service.api.schemas import Problem
from runai.hub_service.api.validation import invalid_request
from runai.hub_service.errors import NotFound, RunaiError, Unavailable
from runai.hub_service.metrics import CONTENT_TYPE, Metrics

__all__ = ["create_app"]

LOG = logging.getLogger("runai.api")

API = "api/v1"


def create_app(
    platform: Platform, *, metrics: Metrics | None = None, login: page.Login | None = None
) -> FastAPI:
    """Return the application; without `login` the page is for tokens only."""
    app = FastAPI(
        title="GPU platform",
        version=platform.version,
        openapi_url=f"{platform.prefix}{API}/openapi.json",
        docs_url=None,  # both load their scripts from another host
        redoc_url=None,
    )
    app.state.platform = platform
    app.include_router(_api(), prefix=f"{platform.prefix}{API}")
    app.include_router(_operations(metrics or Metrics()), prefix=platform.prefix.rstrip("/"))
    app.include_router(page.router, prefix=platform.prefix.rstrip("/"))
    if login is not None:
        app.include_router(page.login_router(login), prefix=platform.prefix.rstrip("/"))
    app.add_exception_handler(RunaiError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(Exception, _unexpected)
    return app


def _api() -> APIRouter:
    # Documented once for all routes; FastAPI's own idea of a validation error is not ours.
    problem = {
        "description": "What went wrong, in one sentence, and the way out",
        "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}},
    }
    api = APIRouter(
        responses={"default": problem},
        dependencies=[Security(HTTPBearer(auto_error=False, description="A token of JupyterHub"))],
    )
    for part in (overview, projects, workloads, usage):
        api.include_router(part.router)
    return api


def _operations(metrics: Metrics) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/health")
    async def health(on: On) -> dict[str, str | int]:
        """Say that the service answers, and how many cycles it has run; for everybody."""
        return {"status": "ok", "version": on.version, "cycles": on.controller.changes.version}

    @routes.get("/metrics")
    async def scrape(on: On, caller: Caller) -> Response:
        """Show Prometheus counters and gauges, of workloads only those that the caller may see."""
        authorise(caller, Action.SEE_CLUSTER)
        return Response(
            metrics.render(await on.viewer(caller), on.version), media_type=CONTENT_TYPE
        )

    return routes


# -- everything that goes wrong becomes problem details ------------------------------------------


def _reply(error: RunaiError) -> Response:
    problem = problem_of(error)
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return Response(problem.model_dump_json(), problem.status, headers, MEDIA_TYPE)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RunaiError)
    return _reply(error)


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _reply(invalid_request(error.errors()))


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"There is nothing to {request.method} at {request.url.path}."
    return _reply(NotFound(what, hint="The routes are in api/v1/openapi.json.", code="no_route"))


async def _unexpected(request: Request, error: Exception) -> Response:
    incident = secrets.token_hex(4)
    LOG.error("incident %s: %s %s", incident, request.method, request.url.path, exc_info=error)
    return _reply(
        RunaiError(
            f"Something went wrong in the GPU service (incident {incident}).",
            hint="Tell an admin the incident: its log says what happened.",
            code="internal_error",
        )
    )
