"""`runai list --watch`: the rows that changed, from the service's events.

A change is another content of a shown column, except measurements and ages
(`tables.Column.compared`).
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import Overview

T = TypeVar("T")


class PrintedRows(Generic[T]):
    """The printed content of each row, by the row's name."""

    def __init__(
        self,
        compared: Callable[[T], Hashable],
        is_listed: Callable[[T], bool] = lambda _: True,
    ) -> None:
        """Start with an empty screen."""
        self._compared, self._is_listed = compared, is_listed
        self._printed: dict[str, Hashable] = {}
        self._in_last_event: frozenset[str] = frozenset()

    def record_changed(self, rows: Mapping[str, T]) -> list[T]:
        """Record an event's rows; return the new, changed and no longer listed ones."""
        changed = []
        for name, row in rows.items():
            is_listed = self._is_listed(row)
            compared = self._compared(row)
            if name in self._printed:
                is_changed = compared != self._printed[name] or not is_listed
            else:
                is_changed = is_listed
            if is_changed:
                changed.append(row)
            if is_listed:
                self._printed[name] = compared
            else:
                self._printed.pop(name, None)
        return changed

    def record_missing(self, event: Mapping[str, T]) -> list[str]:
        """Record an event; return the printed rows that only the last event had."""
        missing = sorted((self._in_last_event - event.keys()) & self._printed.keys())
        self._in_last_event = frozenset(event)
        return missing

    def forget(self, name: str) -> None:
        """Forget a row: one of the same name is new."""
        del self._printed[name]


@dataclass(frozen=True)
class WatchedList(Generic[T]):
    """One kind of rows: where an overview has them, and how they are named and printed."""

    rows: Callable[[Overview], Iterable[T]]
    name: Callable[[T], str]
    compared: Callable[[T], Hashable]
    show: Callable[[Sequence[T]], None]
    show_deleted: Callable[[str], None]
    is_listed: Callable[[T], bool] = lambda _: True
    is_deleted: Callable[[str], bool] = lambda _: True
    """Return True for a deleted row: an event also leaves out the ends of long queues."""


def watch(client: Client, watched: WatchedList[T], first: Iterable[T] = ()) -> None:
    """Print the rows `first`, then each that changes, until Ctrl-C."""
    printed = PrintedRows(watched.compared, watched.is_listed)

    def show(rows: Mapping[str, T]) -> None:
        if changed := printed.record_changed(rows):
            watched.show(changed)

    show({watched.name(row): row for row in first})
    for overview in client.events():
        rows = {watched.name(row): row for row in watched.rows(overview)}
        show(rows)
        for name in filter(watched.is_deleted, printed.record_missing(rows)):
            printed.forget(name)
            watched.show_deleted(name)
