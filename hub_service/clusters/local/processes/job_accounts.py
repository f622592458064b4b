"""Accounts that own the files and processes of rows: always the accounts of the submission."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.processes.accounts.account_directory import AccountDirectory
from runai.hub_service.processes.accounts.known_accounts import KnownAccount
from runai.hub_service.processes.user_account import (
    UnixAccount,
    platform_account,
    unknown_account,
)
from runai.hub_service.wire.errors import Unavailable


class JobAccounts:
    """Accounts of rows, without a lookup."""

    def __init__(self, data_dir: Path, directory: AccountDirectory | None) -> None:
        """Without a directory all workers run as the platform's account."""
        self._data_dir = data_dir
        self._directory = directory

    def known(self, user: str) -> KnownAccount | None:
        """Return what is known of a user's Unix account; None: nothing, or there are none."""
        with suppress(Unavailable):
            return None if self._directory is None else self._directory.known_accounts.get(user)
        return None

    def of(self, row: WorkloadRecord) -> UnixAccount:
        """Return the account of a row's files: that of its submission, never the name's of now.

        An admin may have said that another uid is the same person: then it is that one.
        """
        user, uid = row.spec.user, row.account_uid
        if self._directory is None:
            return platform_account(user, self._data_dir)
        known = self.person(row)
        return unknown_account(user, uid) if known is None else known.account()

    def removal_account(self, row: WorkloadRecord) -> UnixAccount | None:
        """Return the account that removes a row's files in its home; None: they stay.

        A forgotten person's files stay.
        """
        known = self.person(row)
        if known is None or self._directory is None:
            return None
        forgotten = self._directory.known_accounts.is_being_forgotten(known.name)
        return None if forgotten else known.account()

    def of_processes(self, row: WorkloadRecord) -> UnixAccount:
        """Return the account under which a row's processes run."""
        account, uid = self.of(row), row.account_uid
        return account if uid is None else replace(account, uid=uid)

    def person(self, row: WorkloadRecord) -> KnownAccount | None:
        """Return the known account of a row's person; None: it is unknown, or another's now."""
        known, uid = self.known(row.spec.user), row.account_uid
        return known if known is not None and (uid is None or known.is_of(uid)) else None

    def belongs_to_former_user(self, row: WorkloadRecord) -> bool:
        """Return True if a row's uid is no more the person's by whose name it is."""
        return self.known(row.spec.user) is not None and self.person(row) is None
