"""Log in with an account of the data directory.

JupyterHub's half of `accounts`: who has an account may enter, nobody else, and no restart is needed
after `runai user add`. All tries are answered at one pace (`login_attempts`). Any other
authenticator does as well: docs/authenticators.md.
"""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

from jupyterhub.auth import Authenticator
from tornado import web
from traitlets import Unicode, default

from runai.embedded.accounts.accounts import Account, Accounts
from runai.embedded.accounts.login_attempts import PLACE_WITHIN_S, LoginAttempts, NoPlace
from runai.embedded.directory import DataDirectory

GUESSES_AT_ONCE = 2  # hashing is meant to be costly; it must not take the machine


class TooManyLogins(web.HTTPError):
    """Status 429 for a try to log in that found no place."""

    headers: ClassVar = {"Retry-After": f"{PLACE_WITHIN_S:.0f}"}  # JupyterHub sends them

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.TOO_MANY_REQUESTS,
            "Too many people log in at the moment. Try again in some seconds.",
        )


class AccountsAuthenticator(Authenticator):
    """Check names and passwords against `secrets/accounts.json`."""

    data_dir = Unicode(help="The data directory whose accounts may log in.").tag(config=True)

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - traitlets' own signature
        super().__init__(**kwargs)
        self.accounts = Accounts(DataDirectory(Path(self.data_dir)))
        self.attempts = LoginAttempts(self.log)
        self._hashing = asyncio.Semaphore(GUESSES_AT_ONCE)

    @default("auth_refresh_age")
    def _default_auth_refresh_age(self) -> int:
        return 60  # a removed account is out of the browser within a minute

    @default("any_allow_config")
    def _default_any_allow_config(self) -> bool:
        return True  # the file is the list of who may enter

    def check_allowed(self, username: str, authentication: object = None) -> bool:  # noqa: ARG002
        """Let those in who have an account."""
        return username in self.accounts.all()

    async def authenticate(
        self,
        handler: object,  # noqa: ARG002 - JupyterHub's contract
        data: dict[str, str],
    ) -> dict[str, Any] | None:
        """Return who it is, None when name or password is wrong.

        Raises:
            TooManyLogins: too many tries are under way.
        """
        name = self.normalize_username(data.get("username", ""))

        async def check() -> Account | None:
            async with self._hashing:
                return await asyncio.to_thread(self.accounts.check, name, data.get("password", ""))

        try:
            account = await self.attempts.answer(name, check)
        except NoPlace:
            raise TooManyLogins from None
        if account is None:
            return None
        # None leaves it to JupyterHub: rights given on its admin page stay.
        return {"name": account.name, "admin": account.admin or None}

    async def refresh_user(self, user: Any, handler: object = None) -> bool:  # noqa: ANN401, ARG002
        """Send a browser back to the login when its account is gone."""
        return user.name in self.accounts.all()

    def note_for_admins(self) -> str:
        """Return a sentence about accounts whose passwords are being guessed, "" without any."""
        slowed = self.attempts.slowed(self.accounts.all())
        return (
            f"Many wrong passwords within the last hour for: {', '.join(slowed)}. Each try to log"
            " in as one of them takes 5 seconds; hub.log has the tries."
            if slowed
            else ""
        )
