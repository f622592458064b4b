"""Statements about many rows that SQLite carries out in one step.

Its driver lets go of the interpreter for each step and waits to have it back: a hundred rows, one
by one, take a quarter of a millisecond, but 50 beside a thread that computes, as long as which
nobody is answered. Used by `store` and `halves`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection

AT_ONCE = 100
"""Rows of one statement; SQLite before 3.32 takes 999 values, and no row has more than nine."""


def insert(
    connection: Connection,
    into: str,
    rows: Sequence[tuple[Any, ...]],
    *,
    conflict: str = "",
) -> None:
    """Insert rows of the same length `into` a table and its columns; `conflict` ends the SQL."""
    for some in _some(rows):
        one = "(" + ", ".join("?" * len(some[0])) + ")"
        sql = f"INSERT INTO {into} VALUES {', '.join([one] * len(some))} {conflict}"  # noqa: S608  names of our own tables; what others typed is bound
        connection.exec_driver_sql(sql, tuple(value for row in some for value in row))


def delete_named(connection: Connection, column: str, names: Sequence[str]) -> None:
    """Delete the rows of a `table.column` that is one of these names."""
    table, _, name = column.partition(".")
    for some in _some(names):
        sql = f"DELETE FROM {table} WHERE {name} IN ({', '.join('?' * len(some))})"  # noqa: S608  as above
        connection.exec_driver_sql(sql, tuple(some))


def _some(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(rows), AT_ONCE):
        yield rows[begin : begin + AT_ONCE]
