"""Handlers of a hub with Unix accounts: a caller's uid is compared with the known one.

A name that has another uid is another person: neither a cookie nor a token of it opens a page, the
hub's API or a notebook server. All authenticators are covered, since the handlers compare.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from jupyterhub.apihandlers.auth import CookieAPIHandler, TokenAPIHandler
from jupyterhub.handlers import BaseHandler, LogoutHandler
from jupyterhub.user import User
from tornado import web

from runai.hub_service.processes.accounts.account_directory import AccountDirectory
from runai.hub_service.wire.errors import Forbidden, RunaiError
from runai.hub_service.wire.problems import CODE_HEADER

OWNER_ENDPOINTS: Final = (TokenAPIHandler, CookieAPIHandler)
"""Endpoints for servers of JupyterHub 1, left out: they name the owner of any token or cookie."""
AT_ONCE: Final = 4


class UserIdentityChanged(web.HTTPError):
    """Refusal with the sentence on pages, and the code for the service in a header."""

    def __init__(self, error: Forbidden) -> None:
        """Store the sentence; JupyterHub's handlers send the headers."""
        super().__init__(HTTPStatus.FORBIDDEN, error.message)
        self.headers = {CODE_HEADER: error.code}


class ComparedCaller(BaseHandler):
    """Handler that refuses callers and logins whose name is another person's now."""

    unix_accounts: AccountDirectory

    async def prepare(self) -> None:
        """Identify the caller, and compare the account.

        Raises:
            UserIdentityChanged: the name has another uid.
        """
        await super().prepare()
        caller = self.current_user
        if isinstance(caller, User) and not self._finished:
            try:
                await self.unix_accounts.compare(caller.name)
            except Forbidden as error:
                raise UserIdentityChanged(error) from error

    async def authenticate(self, data: dict[str, Any] | None) -> Any:  # noqa: ANN401  JupyterHub's
        """Return the login after a lookup of its account; the first one records the uid.

        Raises:
            UserIdentityChanged: the name has another uid.
        """
        login = await super().authenticate(data)
        if login:
            try:
                await self.unix_accounts.account(login["name"])
            except Forbidden as error:
                raise UserIdentityChanged(error) from error
            except RunaiError as unknown:  # no account, or no answer: as the authenticator decides
                self.log.info("%s logs in: %s", login["name"], unknown.message)
        return login


def compared(handlers: Sequence[Sequence[Any]], accounts: AccountDirectory) -> list[Sequence[Any]]:
    """Return the hub's handlers with compared callers; a logout needs no comparison."""
    return [
        (path, _comparing_handler(kind, accounts), *rest)
        for path, kind, *rest in handlers
        if kind not in OWNER_ENDPOINTS
    ]


async def record_uids(names: Iterable[str], accounts: AccountDirectory) -> None:
    """Look up the accounts that are not known yet, so that their uids are."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def record(name: str) -> None:
        async with slots:
            with suppress(RunaiError):
                if accounts.known_accounts.get(name) is None:
                    await accounts.account(name)

    await asyncio.gather(*map(record, names))


def _comparing_handler(kind: type[web.RequestHandler], accounts: AccountDirectory) -> type:
    """Return a subclass of a handler that compares its callers."""
    if not issubclass(kind, BaseHandler) or issubclass(kind, LogoutHandler):
        return kind
    names = {"__module__": kind.__module__, "unix_accounts": accounts}
    return type(kind.__name__, (ComparedCaller, kind), names)  # the hub's metrics keep its name
