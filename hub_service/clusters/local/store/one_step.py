"""Bulk statements that SQLite carries out in one step.

Its driver releases the interpreter's lock at each step and waits to get it back: a hundred single
rows take 0.25 ms, but 50 ms beside a busy thread, and the event loop is blocked that long.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection

AT_ONCE = 100
"""Rows per statement. SQLite before 3.32 takes 999 values, and no row has more than nine."""


def insert(
    connection: Connection,
    into: str,
    rows: Sequence[tuple[Any, ...]],
    *,
    conflict: str = "",
) -> None:
    """Insert rows of equal length `into` a table and its columns; `conflict` ends the SQL."""
    for some in _some(rows):
        one = "(" + ", ".join("?" * len(some[0])) + ")"
        sql = f"INSERT INTO {into} VALUES {', '.join([one] * len(some))} {conflict}"  # noqa: S608  our own tables; values are bound
        connection.exec_driver_sql(sql, tuple(value for row in some for value in row))


def delete_named(connection: Connection, column: str, names: Sequence[str]) -> None:
    """Delete the rows with one of these names in a `table.column`."""
    table, _, name = column.partition(".")
    for some in _some(names):
        sql = f"DELETE FROM {table} WHERE {name} IN ({', '.join('?' * len(some))})"  # noqa: S608  as above
        connection.exec_driver_sql(sql, tuple(some))


def _some(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(rows), AT_ONCE):
        yield rows[begin : begin + AT_ONCE]
