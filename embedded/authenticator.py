"""Log in with an account of the data directory.

JupyterHub's half of `accounts`: who has an account may enter, nobody else, and no restart is needed
after `runai user add`. Wrong passwords are slowed down for each account by itself. Any other
authenticator does as well: docs/authenticators.md.
"""

import asyncio
from pathlib import Path
from typing import Any

from jupyterhub.auth import Authenticator
from traitlets import Float, Unicode, default

from runai.embedded.accounts import Accounts
from runai.embedded.directory import DataDirectory

__all__ = ["AccountsAuthenticator"]

GUESSES_AT_ONCE = 2  # hashing is meant to be costly; it must not take the machine


class AccountsAuthenticator(Authenticator):
    """Check names and passwords against `secrets/accounts.json`."""

    data_dir = Unicode(help="The data directory whose accounts may log in.").tag(config=True)

    delay_seconds = Float(
        1.0, help="After a wrong password, the next try for the same account waits this long."
    ).tag(config=True)

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - traitlets' own signature
        super().__init__(**kwargs)
        self.accounts = Accounts(DataDirectory(Path(self.data_dir)))
        self._hashing = asyncio.Semaphore(GUESSES_AT_ONCE)
        self._turns: dict[str, asyncio.Lock] = {}

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
        """Return who it is, None when name or password is wrong."""
        name = self.normalize_username(data.get("username", ""))
        # Names that do not exist share a turn: guessing names costs no memory.
        turn = self._turns.setdefault(name if name in self.accounts.all() else "", asyncio.Lock())
        async with turn:
            async with self._hashing:
                account = await asyncio.to_thread(
                    self.accounts.check, name, data.get("password", "")
                )
            if account is None:
                await asyncio.sleep(self.delay_seconds)
                return None
        # None leaves it to JupyterHub: rights given on its admin page stay.
        return {"name": account.name, "admin": account.admin or None}

    async def refresh_user(self, user: Any, handler: object = None) -> bool:  # noqa: ANN401, ARG002
        """Send a browser back to the login when its account is gone."""
        return user.name in self.accounts.all()
