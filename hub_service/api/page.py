"""The page "GPUs": one server-rendered document, its style and its script, behind the hub's login.

The script shows the event stream; the document alone already shows who is logged in. Routes: the
page, `login`, `oauth_callback`, `static/…`. Nothing is fetched from other hosts.
"""

import html
from importlib.resources import files
from typing import Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from runai.hub_service.api.platform import On
from runai.hub_service.errors import NotFound, Unauthenticated

__all__ = ["Login", "login_router", "router"]

router = APIRouter(include_in_schema=False)

_PAGES = files("runai.hub_service.api") / "pages"
_STATIC = {"gpus.css": "text/css", "gpus.js": "text/javascript", "gpus.svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


class Login(Protocol):
    """Log a browser in through the hub."""

    async def begin_login(self, request: Request, next_path: str) -> Response:
        """Send the browser to the hub."""

    async def finish_login(self, request: Request) -> Response:
        """Take what the hub sends back."""


@router.get("/")
async def page(request: Request, on: On) -> Response:
    """Show the page, or go to the hub's login first."""
    try:
        caller = await on.authenticator.actor(request)
    except Unauthenticated:
        return RedirectResponse(f"{on.prefix}login", 302)
    text = (_PAGES / "gpus.html").read_text()
    filled = text.replace("{user}", html.escape(caller.name)).replace("{prefix}", on.prefix)
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
    return HTMLResponse(filled, headers=headers)


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """Send one of the page's own files."""
    if name not in _STATIC:
        raise NotFound(f"There is no file {name}.")
    content = (_PAGES / name).read_bytes()
    headers = {"Cache-Control": "max-age=300", "X-Content-Type-Options": "nosniff"}
    return Response(content, media_type=_STATIC[name], headers=headers)


def login_router(login: Login) -> APIRouter:
    """Return the two routes of the login."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/login")
    async def begin(request: Request, next: str = "") -> Response:  # noqa: A002  its public name
        """Go to the hub's login and come back to `next`, a path of ours."""
        return await login.begin_login(request, next)

    @routes.get("/oauth_callback")
    async def finish(request: Request) -> Response:
        """Come back from the hub."""
        return await login.finish_login(request)

    return routes
