"""The databases that a ledger may be on, for the tests of what a dialect decides.

SQL that is sent, rows that come back, transactions, locks and migrations differ; what is made of
rows is the same, so tests of that play on SQLite alone.
"""

from __future__ import annotations

import pytest

on_each_database = pytest.mark.parametrize(
    "new_database",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)],
    indirect=True,
)
