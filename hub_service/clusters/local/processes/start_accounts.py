"""Accounts of jobs' starts: each start has a lookup of its own, and waits for it in the queue.

A job whose account does not answer, or belongs to another person now, is set aside with the reason.
The accounts of such jobs are looked up again and again, so that the jobs start by themselves.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, NoReturn, Protocol

from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.model.records import StateReason, WorkloadId, WorkloadRecord
from runai.hub_service.processes.accounts.account_directory import (
    AccountAway,
    AccountDirectory,
    other_person,
)
from runai.hub_service.processes.user_account import UnixAccount
from runai.hub_service.wire.errors import Forbidden, NotFound, RunaiError, Unavailable

LOG = logging.getLogger("runai.service")

LOOK_UP_EVERY_S: Final = 10.0
GIVE_UP_AFTER_S: Final = 600.0
"""Seconds after which jobs of an account that this machine's list lacks are suspended."""


class AccountsCluster(Protocol):
    """Cluster methods that starts call."""

    def end_start(self, workload: WorkloadId, attempt: int, exit_status: ExitStatus) -> None:
        """Apply an exit to the workers of a start that have not begun."""

    def set_aside(self, user: str, reason: StateReason) -> None:
        """Set all jobs of a user aside that are in the queue."""

    def put_off(self, workload: WorkloadId, attempt: int, reason: StateReason) -> None:
        """Set a job aside of which a start cannot go on."""

    def take_up(self, user: str) -> None:
        """Put a user's jobs that were set aside back into the queue."""

    def give_up(self, user: str, reason: StateReason) -> None:
        """Suspend a user's jobs that were set aside."""


class StartAccounts:
    """Lookups of starts, and of the accounts that jobs wait for."""

    def __init__(
        self,
        directory: AccountDirectory,
        cluster: AccountsCluster,
        enqueue: Callable[[WorkloadId], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start without lookups; `enqueue` continues a start when its account is known."""
        self._directory = directory
        self._cluster = cluster
        self._enqueue = enqueue
        self._clock = clock
        self._accounts: dict[WorkloadId, tuple[int, UnixAccount]] = {}
        """The account of each workload's last start, with its attempt."""
        self._lookups: dict[tuple[WorkloadId, int], asyncio.Task[None]] = {}
        self._waiting_users: set[str] = set()
        """Users with jobs that were set aside."""

    def find_or_look_up(self, row: WorkloadRecord, attempt: int) -> UnixAccount | None:
        """Return the account that was looked up for a start, or begin the lookup.

        None: the lookup has just begun, or goes on; the workload is enqueued afterwards.
        """
        last_attempt, account = self._accounts.get(row.id, (0, None))
        if account is not None and last_attempt == attempt:
            return account
        start = (row.id, attempt)
        if start not in self._lookups:
            task = asyncio.create_task(self._look_up(row, attempt))
            self._lookups[start] = task
            task.add_done_callback(lambda _: self._lookups.pop(start, None))
        return None

    def forget(self, workload: WorkloadId) -> None:
        """Forget the account of a deleted workload's last start."""
        self._accounts.pop(workload, None)

    def wait_for(self, users: Iterable[str]) -> None:
        """Look these users' accounts up until they answer: they have jobs that were set aside."""
        self._waiting_users.update(users)

    async def run(self) -> NoReturn:
        """Look up the accounts that jobs wait for, every 10 s, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_UP_EVERY_S)
            await asyncio.gather(*map(self._try_again, sorted(self._waiting_users)))

    async def _look_up(self, row: WorkloadRecord, attempt: int) -> None:
        """Look up a start's account, then continue the start, end it, or set its job aside."""
        user = row.spec.user
        try:
            account = await self._directory.account(user)
            uid, known = row.account_uid, self._directory.known_accounts.get(user)
            if uid is not None and known is not None and not known.is_of(uid):
                raise other_person(user, known.uid, uid)
        except NotFound as refused:
            reason, fault = None, refused.message
        except (Forbidden, Unavailable) as refused:
            reason, fault = _reason(refused), ""
        else:
            self._accounts[row.id] = attempt, account
            self._enqueue(row.id)
            return
        try:
            if reason is None:
                self._cluster.end_start(row.id, attempt, ExitStatus(None, text=fault))
            else:
                self.wait_for([user])
                self._cluster.put_off(row.id, attempt, reason)
                self._cluster.set_aside(user, reason)
        except Unavailable as full:  # the row cannot be stored: a new lookup follows
            LOG.warning("%s is started later: %s", row.id, full.message)
            asyncio.get_running_loop().call_later(LOOK_UP_EVERY_S, self._enqueue, row.id)

    async def _try_again(self, user: str) -> None:
        """Look up an account that jobs wait for, and take these up, give them up or wait on."""
        why: RunaiError | None = None
        try:
            await self._directory.account(user)
        except NotFound:
            pass  # forgotten, or never known: a start says so
        except (Forbidden, Unavailable) as refused:
            why = refused
        with contextlib.suppress(Unavailable):  # the rows cannot be stored: the next round tries
            if why is None:
                self._cluster.take_up(user)
            elif self._is_account_removed(why):
                self._cluster.give_up(user, _reason(why))
            else:
                self._cluster.set_aside(user, _reason(why))
                return
            self._waiting_users.discard(user)

    def _is_account_removed(self, why: RunaiError) -> bool:
        """Return True if this machine's list has lacked the account for long."""
        since = why.missing_since if isinstance(why, AccountAway) else None
        return since is not None and self._clock() - since >= GIVE_UP_AFTER_S


def _reason(why: RunaiError) -> StateReason:
    return StateReason(why.code, why.message.removesuffix("."))  # lists go on behind it
