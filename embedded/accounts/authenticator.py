"""JupyterHub authenticator for the accounts of the data directory.

Only these accounts can log in; changes of `runai user` need no restart. All attempts take equally
long (`login_attempts`). Other authenticators work as well: docs/authenticators.md.
"""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

from jupyterhub.auth import Authenticator
from tornado import web
from traitlets import Unicode, default

from runai.embedded.accounts.accounts import Account, Accounts
from runai.embedded.accounts.login_attempts import SLOT_TIMEOUT_S, LoginAttempts, NoFreeSlot
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.wire.errors import RunaiError

GUESSES_AT_ONCE = 2  # each hash is costly by design: bounds the CPU


class TooManyLogins(web.HTTPError):
    """HTTP 429: too many login attempts are in progress."""

    headers: ClassVar = {"Retry-After": f"{SLOT_TIMEOUT_S:.0f}"}  # JupyterHub sends them

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.TOO_MANY_REQUESTS,
            "Too many people log in at the moment. Try again in some seconds.",
        )


class AccountsUnavailable(web.HTTPError):
    """HTTP 503: the file of accounts cannot be read."""

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "The accounts cannot be read. An admin of this machine can mend it.",
        )


class AccountsAuthenticator(Authenticator):
    """An authenticator that checks passwords against `secrets/accounts.json`."""

    data_dir = Unicode(help="The data directory whose accounts may log in.").tag(config=True)

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - traitlets' own signature
        super().__init__(**kwargs)
        self.accounts = Accounts(DataDirectory(Path(self.data_dir)))
        self.attempts = LoginAttempts(self.log)
        self._hashing = asyncio.Semaphore(GUESSES_AT_ONCE)

    @default("auth_refresh_age")
    def _default_auth_refresh_age(self) -> int:
        return 60  # a removed account is logged out within a minute

    @default("any_allow_config")
    def _default_any_allow_config(self) -> bool:
        return True  # the accounts file is the allow list

    def check_allowed(self, username: str, authentication: object = None) -> bool:  # noqa: ARG002
        """Return True if the user has an account."""
        return username in self._accounts()

    async def authenticate(
        self,
        handler: object,  # noqa: ARG002 - JupyterHub's contract
        data: dict[str, str],
    ) -> dict[str, Any] | None:
        """Return the user's name and admin flag, None if name or password is wrong.

        Raises:
            TooManyLogins: too many attempts are in progress.
            AccountsUnavailable: the accounts cannot be read.
        """
        name = self.normalize_username(data.get("username", ""))

        async def check() -> Account | None:
            async with self._hashing:
                return await asyncio.to_thread(self.accounts.check, name, data.get("password", ""))

        try:
            account = await self.attempts.answer(name, check)
        except NoFreeSlot:
            raise TooManyLogins from None
        except RunaiError as failed:
            raise self._unavailable(failed) from failed
        if account is None:
            return None
        # None keeps JupyterHub's flag: admin rights set on its admin page stay.
        return {"name": account.name, "admin": account.admin or None}

    async def refresh_user(self, user: Any, handler: object = None) -> bool:  # noqa: ANN401, ARG002
        """Return False for a removed account, so that the browser must log in again."""
        return user.name in self._accounts()

    def note_for_admins(self) -> str:
        """Return a sentence about accounts under a password attack, "" without any."""
        try:
            slowed = self.attempts.slowed(self.accounts.all())
        except RunaiError as failed:  # the error page has this note, too
            return f"{failed.message} There is no login until then."
        return (
            f"Many wrong passwords within the last hour for: {', '.join(slowed)}. Each try to log"
            " in as one of them takes 5 seconds; hub.log has the tries."
            if slowed
            else ""
        )

    def _accounts(self) -> Mapping[str, Account]:
        try:
            return self.accounts.all()
        except RunaiError as failed:
            raise self._unavailable(failed) from failed

    def _unavailable(self, failed: RunaiError) -> AccountsUnavailable:
        """Log why the accounts cannot be read; return the error for users."""
        self.log.error("%s %s", failed.message, failed.hint)
        return AccountsUnavailable()
