"""The kinds of databases that a ledger may use, for tests of dialects.

SQL, returned rows, transactions, locks and migrations differ between dialects; the use of rows does
not, so tests of that run on SQLite alone.
"""

from __future__ import annotations

import pytest

on_each_database = pytest.mark.parametrize(
    "new_database",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)],
    indirect=True,
)
