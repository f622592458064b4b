"""PAM authenticator that checks the password of the account that will run.

JupyterHub's own checks the typed name and changes it afterwards: the password of `Dora` would open
sessions of the account `dora`.
"""

import asyncio
import pwd
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from jupyterhub.auth import Authenticator, PAMAuthenticator
from jupyterhub.utils import maybe_future
from tornado import web
from traitlets.config import Config

from runai.embedded.accounts.login_attempts import MAX_NAME_LENGTH
from runai.hub_service.wire.printable import printable


class NormalizedName(str):
    """A user's name after JupyterHub's changes, which are not made again."""

    __slots__ = ()


class UnixAuthenticator(PAMAuthenticator):
    """A PAM authenticator that changes the name (lower case, map) before PAM checks it."""

    async def authenticate(self, handler: object, data: dict[str, str]) -> Any:  # noqa: ANN401
        """Return the account's name, None for a wrong name or password.

        Raises:
            HTTPError: 403 with a sentence; without the password it reveals no account.
        """
        typed = data["username"]
        name, exists = await asyncio.to_thread(self._checked_name, typed)
        user = await maybe_future(super().authenticate(handler, {**data, "username": name}))
        if user is None and name != typed and not exists:  # a mistake in the map
            login_name, account = _quoted(typed), _quoted(name)
            self.log.warning(
                "%s logs in as %s, which this machine does not have.", login_name, account
            )
        lower = typed.lower()
        if user is None and typed != lower and not self.pam_normalize_username:
            raise _refusal(
                f"Invalid username or password. Capitals do not count here: {_quoted(typed)} is"
                f" {_quoted(lower)}. If your account is written with capitals, ask an admin."
            )
        if user is not None and not (exists or self.create_system_users):
            raise _refusal(
                f"There is no Unix account {_quoted(name)} on this machine. Ask its admin."
            )
        return user

    def normalize_username(self, username: str) -> str:
        """Return the name as JupyterHub changes it, or unchanged if that was done."""
        if isinstance(username, NormalizedName):
            return str(username)
        return str(super().normalize_username(username))

    def _checked_name(self, typed: str) -> tuple[NormalizedName, bool]:
        """Return the name to check, and True if it has an account.

        Without one PAM is asked, too: all refusals take the same time.
        """
        name, exists = typed, False
        with suppress(KeyError, ValueError):  # no account, a character that no name has
            name = self.normalize_username(typed)
            exists = pwd.getpwnam(name) is not None
        return NormalizedName(name), exists


def with_checked_accounts(chosen: type[Authenticator]) -> type[Authenticator]:
    """Return the chosen class; of PAM's and its subclasses one with checked accounts."""
    if not issubclass(chosen, PAMAuthenticator):
        return chosen
    attributes = {"__module__": chosen.__module__}  # the hub's log names it with its version
    return type(f"Checked{chosen.__name__}", (UnixAuthenticator, chosen), attributes)


def pam_service(config: Config) -> str:
    """Return the service of PAM that says whether accounts have expired; "": none is asked.

    It is the login's, also with an authenticator that does not ask PAM.
    """
    chosen = config.JupyterHub.get("authenticator_class")
    uses_pam = isinstance(chosen, type) and issubclass(chosen, PAMAuthenticator)
    authenticator = chosen if uses_pam else PAMAuthenticator
    settings: dict[str, Any] = {}
    for section in authenticator.section_names():
        settings |= config.get(section, {})
    if not settings.get("check_account", authenticator.check_account.default_value):
        return ""
    return str(settings.get("service", authenticator.service.default_value))


def _refusal(sentence: str) -> web.HTTPError:
    return web.HTTPError(HTTPStatus.FORBIDDEN, sentence)


def _quoted(name: str) -> str:
    return printable(name, MAX_NAME_LENGTH)
