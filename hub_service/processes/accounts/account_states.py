"""States of Unix accounts: one that has expired, or that PAM does not admit, starts nothing."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from runai.hub_service.processes.accounts import state_program
from runai.hub_service.processes.accounts.programs import WITHIN_S, query
from runai.hub_service.wire.errors import Forbidden, RunaiError, Unavailable
from runai.hub_service.wire.printable import printable

SERVICE: Final = "login"
"""Default service of PAM, as JupyterHub's."""
CACHE_S: Final = 60.0
"""Seconds for which an account's state is believed."""
ALL_WITHIN_S: Final = 30.0
"""Time for all accounts, at `runai doctor`."""
STATES: Final = (sys.executable, "-I", "-S", state_program.__file__)
EXPIRED: Final = "account_expired"
AWAY: Final = "account_away"
_ADMITTED: Final = (0, 12)
"""PAM_SUCCESS and PAM_NEW_AUTHTOK_REQD (a password to be changed), <security/_pam_types.h>."""
_REFUSED: Final = (6, 7, 13, 27)
"""PAM_PERM_DENIED, AUTH_ERR, ACCT_EXPIRED, AUTHTOK_EXPIRED.

With Debian's common-account an expired account is PAM_AUTH_ERR: pam_deny's code.
"""
_USER_UNKNOWN: Final = 10
_ACCT_EXPIRED: Final = 13
_LONGEST_TEXT: Final = 200


class AccountStates:
    """States of accounts by a service of PAM, each asked for at most once a minute."""

    def __init__(
        self,
        service: str = SERVICE,
        *,
        command: Sequence[str] = STATES,
        within_s: float = WITHIN_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Ask by this command, which prints what `state_program` does."""
        self._service = service
        self._command = command
        self._within_s = within_s
        self._clock = clock
        self._cache: dict[str, tuple[float, Forbidden | None]] = {}

    async def check(self, name: str) -> None:
        """Check that an account may start something.

        Raises:
            Forbidden: it has expired, or PAM does not admit it.
            Unavailable: PAM does not say.
        """
        at, refused = self._cache.get(name, (-CACHE_S, None))
        if not 0 <= self._clock() - at < CACHE_S:
            refused = await self._query(name)
            self._cache[name] = self._clock(), refused
        if refused is not None:
            raise refused.with_traceback(None)  # it is raised again and again

    async def _query(self, name: str) -> Forbidden | None:
        """Return the refusal of an account, as PAM answers now; None: it is admitted."""
        try:
            answers = await query((*self._command, self._service, name), self._within_s)
        except OSError as failed:
            raise _no_answer(name, self._service, failed.strerror or "") from failed
        return _refusal(name, self._service, answers or {})


async def hindrances(service: str, names: Sequence[str]) -> list[RunaiError]:
    """Return why accounts may start nothing now, for `runai doctor`; names without one pass."""
    answers: dict[str, Any] = {}
    with suppress(OSError):
        answers = await query((*STATES, service, *names), ALL_WITHIN_S) or {}
    by_message: dict[str, RunaiError] = {}
    for name in names:
        if answers.get(name, ("",))[0] != _USER_UNKNOWN:
            try:
                hindrance: RunaiError | None = _refusal(name, service, answers)
            except Unavailable as away:
                hindrance = away
            if hindrance is not None:
                by_message[hindrance.message] = hindrance
    return [*by_message.values()]


def _refusal(name: str, service: str, answers: Mapping[str, Any]) -> Forbidden | None:
    """Return the refusal of an account by the program's answer; None: it is admitted.

    Raises:
        Unavailable: the answer is an error of PAM, or nobody may log in now.
    """
    code, text, nologin = answers.get(name, ("", "no answer", ""))
    text = printable(text, _LONGEST_TEXT).rstrip(".")
    if code in _ADMITTED:
        return None
    if nologin:
        raise _unavailable(f"Nobody may log in to this machine now ({nologin}).")
    if code not in _REFUSED:
        raise _no_answer(name, service, text)
    is_expired = code == _ACCT_EXPIRED or "account has expired" in text  # pam_unix's words
    why = "has expired" if is_expired else f"is not admitted by PAM (service {service}: {text})"
    return Forbidden(
        f"The account {name} {why}.",
        hint=f"An admin of the machine can extend it (`usermod -e '' {name}`).",
        code=EXPIRED,
    )


def _no_answer(name: str, service: str, why: str) -> Unavailable:
    return _unavailable(f"PAM (service {service}) does not say whether {name} is admitted: {why}.")


def _unavailable(message: str) -> Unavailable:
    return Unavailable(
        message,
        hint="Jobs that wait for this start by themselves when it is over.",
        code=AWAY,
        retry_after=10.0,
    )
