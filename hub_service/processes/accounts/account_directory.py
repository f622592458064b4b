"""Account directory of the machine: each answer is compared with the known uid of the name.

A lookup runs in a process that is ended after 5 s. All callers with the same name share one process
meanwhile, so that one silent account holds up no other.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from runai.hub_service.processes.accounts import lookup_program
from runai.hub_service.processes.accounts.account_states import AWAY, AccountStates
from runai.hub_service.processes.accounts.known_accounts import KnownAccount, KnownAccounts
from runai.hub_service.processes.accounts.programs import WITHIN_S, query
from runai.hub_service.processes.user_account import UnixAccount
from runai.hub_service.wire.errors import Forbidden, NotFound, RunaiError, Unavailable

READ_FOR_S: Final = 60.0
"""Seconds for which a comparison counts for reading."""
LOOKUP: Final = (sys.executable, "-I", "-S", lookup_program.__file__)
HOME_AWAY: Final = "home_away"
OTHER_PERSON: Final = "other_person"
BEING_FORGOTTEN: Final = "being_forgotten"
NO_ACCOUNT: Final = "no_account"


class AccountAway(Unavailable):
    """Error: a known account cannot be looked up now, or its home cannot be reached."""

    def __init__(
        self, message: str, *, missing_since: float | None = None, code: str = AWAY
    ) -> None:
        """Store the sentence; `missing_since`: /etc/passwd had the account, and lacks it since."""
        super().__init__(
            message,
            hint="Jobs that wait for the account start by themselves when it is back.",
            code=code,
            retry_after=10.0,
        )
        self.missing_since = missing_since


class AccountDirectory:
    """Lookups of Unix accounts by name, for one event loop."""

    def __init__(
        self,
        known_accounts: KnownAccounts,
        *,
        command: Sequence[str] = LOOKUP,
        within_s: float = WITHIN_S,
        clock: Callable[[], float] = time.time,
        states: AccountStates | None = None,
    ) -> None:
        """Look up by this command, which prints what `lookup_program` does.

        `states`: checks of accounts that expire; None: no account does.
        """
        self.known_accounts = known_accounts
        self._states = states
        self._command = command
        self._within_s = within_s
        self._clock = clock
        self._lookup_tasks: dict[tuple[str, bool], asyncio.Task[UnixAccount]] = {}
        self._compared: dict[str, tuple[float, RunaiError | None]] = {}
        """Time and outcome of each name's last comparison."""
        self._away_since: dict[str, float] = {}

    async def account(self, name: str) -> UnixAccount:
        """Look an account up now, for a start or a submission.

        Raises:
            NotFound: the name never had an account here, and has none; or is root.
            Forbidden: the name is another person's now, or is being forgotten, or the account has
                expired.
            AccountAway: the account is known, and gives no answer, or its home does not.
            Unavailable: PAM gives none.
        """
        return await self._join_lookup(name, to_start=True)

    async def compare(self, name: str, *, to_read: bool = True) -> None:
        """Compare the uid of a name with the known one; `to_read`: at most once a minute.

        Names without an account pass, and accounts that are gone, away or expired.

        Raises:
            Forbidden: the name is another person's now.
        """
        at, refused = self._compared.get(name, (-READ_FOR_S, None))
        if not to_read or self._clock() - at >= READ_FOR_S or self._clock() < at:
            refused = None
            try:
                await self._join_lookup(name, to_start=False)
            except Forbidden as other:
                refused = other
            except (NotFound, Unavailable):
                pass
            self._compared[name] = self._clock(), refused
        if refused is not None:
            raise refused.with_traceback(None)  # not that of the last request

    async def _join_lookup(self, name: str, *, to_start: bool) -> UnixAccount:
        """Look an account up, or wait for a lookup of it that runs already."""
        key = (name, to_start)
        task = self._lookup_tasks.get(key)
        if task is None:
            task = self._lookup_tasks[key] = asyncio.create_task(
                self._account(name, to_start=to_start)
            )
            task.add_done_callback(lambda done: self._end_lookup(key, done))
        return await asyncio.shield(task)

    def _end_lookup(self, key: tuple[str, bool], done: asyncio.Task[UnixAccount]) -> None:
        self._lookup_tasks.pop(key, None)
        if not done.cancelled():
            done.exception()  # raised in the callers, unless all were cancelled

    async def _account(self, name: str, *, to_start: bool) -> UnixAccount:
        """Look up an account; raise if it is another person's, barred, or without its home."""
        if self.known_accounts.is_being_forgotten(name):
            raise being_forgotten(name)
        now, fault = await self.look_up(name)
        registered = self.known_accounts.register(now)
        if registered.uid != now.uid:
            raise other_person(name, now.uid, registered.uid)
        if fault:
            since = self._silent_since(name)
            text = (
                f"{registered.home}, the home of {name}, cannot be reached since {since}: {fault}."
            )
            raise AccountAway(text, code=HOME_AWAY)
        if to_start and self._states is not None:
            await self._states.check(name)
        return registered.account()

    async def look_up(self, name: str) -> tuple[KnownAccount, str]:
        """Return an account as the machine has it now, not compared, and the fault of its home.

        Raises:
            NotFound: the name never had an account here, and has none; or is root.
            AccountAway: the account is known, and the directory gives no answer.
        """
        known = self.known_accounts.get(name)
        reply = await self._query(name, () if known is None else known.directory_groups)
        if reply is None or "uid" not in reply or reply["silent_groups"]:
            raise self._no_answer_error(name, known, reply)
        fault = reply.get("home_fault", "it does not answer")
        if not fault:
            self._away_since.pop(name, None)
        if reply["uid"] == 0:
            raise _no_account(f"User {name} is root, as whom nothing runs.")
        now = KnownAccount(
            name,
            reply["uid"],
            reply["gid"],
            reply["home"],
            reply["shell"],
            tuple(reply["groups"]),
            tuple(reply["directory_groups"]),
            bool(reply["local"]),
            umask=reply["umask"],
        )
        return now, fault

    def _no_answer_error(
        self, name: str, known: KnownAccount | None, reply: Mapping[str, Any] | None
    ) -> NotFound | AccountAway:
        """Return the error for an account without an answer, or without all its groups."""
        if known is None and reply is not None and "uid" not in reply:
            return _no_account(f"User {name} has no account on this machine.")
        since = self._silent_since(name)
        if known is not None and known.local and reply is not None and reply["local"] is False:
            text = f"The account {name} is gone since {since}."
            return AccountAway(text, missing_since=self._away_since[name])
        what = f"the groups of {name}" if reply is not None and "uid" in reply else name
        return AccountAway(f"The account directory does not answer for {what} since {since}.")

    def _silent_since(self, name: str) -> str:
        """Return the time since which something of an account does not answer."""
        since = self._away_since.setdefault(name, self._clock())
        return time.strftime("%H:%M", time.localtime(since))

    async def _query(self, name: str, groups: Sequence[int]) -> dict[str, Any] | None:
        """Return what the program tells within the time; None without a word of the account.

        Raises:
            AccountAway: the machine has no process or descriptor left.
        """
        try:
            return await query((*self._command, name, *map(str, groups)), self._within_s)
        except (OSError, ValueError) as failed:  # ValueError: a name with a null character
            if isinstance(failed, ValueError):
                raise _no_account("A name with such a character has no account.") from failed
            why = f"{name} cannot be looked up now: {failed.strerror}."
            raise AccountAway(why) from failed


def directory_of(data_dir: Path | str, pam_service: str = "") -> AccountDirectory:
    """Return this process's account directory with what a data directory knows; "": nothing.

    States of accounts are those of a service of PAM; "": none expires.
    """
    return _directory_of(str(data_dir), pam_service)


@cache
def _directory_of(data_dir: str, pam_service: str) -> AccountDirectory:
    known_accounts = KnownAccounts(Path(data_dir) if data_dir else None)
    states = AccountStates(pam_service) if pam_service else None
    return AccountDirectory(known_accounts, states=states)


def other_person(name: str, uid: int, earlier: int) -> Forbidden:
    """Return the refusal of a name that has another uid now."""
    return Forbidden(
        f"{name} has uid {uid} now, it was {earlier}: an admin says whether this is the same"
        " person.",
        hint=f"`runai user same-person {name}`, or `runai user forget {name}` for another person.",
        code=OTHER_PERSON,
    )


def being_forgotten(name: str) -> Forbidden:
    """Return the refusal of a name whose former person has not ended yet."""
    return Forbidden(
        f"{name} is being forgotten: the name can be used when that is done.",
        hint="hub.log tells an admin of the machine the reason of the wait.",
        code=BEING_FORGOTTEN,
    )


def _no_account(message: str) -> NotFound:
    return NotFound(
        message, hint="An administrator of the machine can add one (adduser).", code=NO_ACCOUNT
    )
