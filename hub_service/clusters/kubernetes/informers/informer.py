"""Keep a copy of one kind of object up to date: list once, then watch for ever.

Knows how a watch is resumed where it broke, and when the list must be read again (410: what we last
saw is too long ago). An object is parsed as it arrives and only what was parsed is kept. Owned by
the cluster, which is told of every change that its parsed objects show.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping
from typing import Generic, NoReturn, TypeVar

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object, key_of
from runai.hub_service.wire.errors import RunaiError

LOG = logging.getLogger("runai.kubernetes")

T = TypeVar("T")

PAGE = "500"
WATCH_SECONDS = 300
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 10.0


class Mirror(Generic[T]):
    """The objects behind one path, by `namespace/name`."""

    def __init__(
        self,
        api: Api,
        path: str,
        parse: Callable[[Object], T | None],
        on_change: Callable[[], None],
        *,
        is_detail: Callable[[T, T], bool] = lambda _before, _now: False,
        on_detail: Callable[[], None] = lambda: None,
        without: str = "",
        **query: str,
    ) -> None:
        """Begin empty. What `parse` returns None of, or fails on, is left out; a failure is logged.

        A change of one object that is a detail is told by `on_detail` instead of `on_change`.
        `without` says what is not done where these objects may not be read: then there are none,
        until somebody gives us that right. Without it nobody goes on before the first list.
        Of the `query` what is "" is left out.
        """
        self._api = api
        self._path = path
        self._parse = parse
        self._on_change = on_change
        self._is_detail = is_detail
        self._on_detail = on_detail
        self._without = without
        self._query = {name: value for name, value in query.items() if value}
        self._known: dict[str, T] = {}
        self._seen = ""
        """The resourceVersion of the last change; "" before the first list."""
        self._ahead: dict[str, int] = {}
        """Versions that answers have shown and the watch has not, by key (they grow: KEP-5504)."""
        self._dropped: set[str] = set()
        """UIDs of what is gone, though the watch has not said so."""
        self._listed = asyncio.Event()
        self.lists = 0
        """How often the whole list was read."""

    @property
    def objects(self) -> Mapping[str, T]:
        """Return what is there, by `namespace/name`; it changes between two awaits."""
        return self._known

    async def listed(self) -> None:
        """Return when the first list has been read."""
        await self._listed.wait()

    def take(self, found: Object, *, quietly: bool = False) -> None:
        """Note an object as an answer shows it, before the watch does; older news are skipped.

        Not `quietly`: it is a change that somebody else asked for.
        """
        key = key_of(found)
        self._ahead[key] = int(found["metadata"]["resourceVersion"])
        if (parsed := self._parsed(key, found)) is not None:
            before, self._known[key] = self._known.get(key), parsed
            if not quietly:
                self._tell(before, parsed)

    def drop(self, key: str, uid: str) -> None:
        """Note that an object is gone, before the watch does."""
        self._dropped.add(uid)
        if self._known.pop(key, None) is not None:
            self._on_change()

    def forget(self) -> None:
        """Know that there is nothing, and list anew when it runs again; only while it does not."""
        self._known, self._seen = {}, ""
        self._ahead.clear()
        self._dropped.clear()
        self._listed.set()

    async def run(self) -> NoReturn:
        """Follow the API server until cancelled, however often it goes away."""
        pause = SHORTEST_PAUSE_S
        while True:
            before = self._seen
            try:
                if not self._seen:
                    await self._list()
                await self._watch()
            except ApiError as error:
                if error.status == 410:
                    self._seen = ""
                elif error.status == 403 and self._without and not self.lists:
                    self._go_on_without(error)
                elif not error.is_unanswered:
                    LOG.warning("%s: %s", self._path, error.message)
            if before != self._seen:
                pause = SHORTEST_PAUSE_S  # it got somewhere
            # Everybody who watches lost the server at the same time: come back one by one.
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  no secret
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _go_on_without(self, error: ApiError) -> None:
        """Say it once, and let nobody wait for the first list.

        What was listed before is kept: an API server that has just begun refuses, too, what it does
        not yet know to be allowed.
        """
        if not self._listed.is_set():
            LOG.warning("%s: %s: %s; it is asked again", self._path, error.message, self._without)
            self._listed.set()

    async def _list(self) -> None:
        found: dict[str, T] = {}
        query = {"limit": PAGE, **self._query}
        while True:
            page = await self._api.get(self._path, **query)
            for item in page["items"]:
                key = key_of(item)
                if (parsed := self._parsed(key, item)) is not None:
                    found[key] = parsed
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                break
        self.lists += 1
        self._ahead.clear()
        self._dropped.clear()
        self._seen = page["metadata"]["resourceVersion"]
        is_new = found != self._known or not self._listed.is_set()
        self._known = found
        if is_new:
            self._on_change()
        self._listed.set()

    async def _watch(self) -> None:
        seconds = int(WATCH_SECONDS * random.uniform(1, 2))  # noqa: S311  no secret
        query = {"resourceVersion": self._seen, "allowWatchBookmarks": "true", **self._query}
        changes = self._api.watch(self._path, seconds=seconds, **query)
        async with contextlib.aclosing(changes):
            async for change in changes:
                self._note(change)

    def _note(self, change: Object) -> None:
        subject = change["object"]
        if change["type"] == "ERROR":
            raise ApiError(
                int(subject.get("code", 500)),
                str(subject.get("reason", "")),
                str(subject.get("message", "the watch failed")),
            )
        if change["type"] != "BOOKMARK":
            self._take(change["type"], subject)
        self._seen = subject["metadata"]["resourceVersion"]

    def _take(self, kind: str, subject: Object) -> None:
        key = key_of(subject)
        if self._is_old(kind, key, subject["metadata"]):
            return
        parsed = None if kind == "DELETED" else self._parsed(key, subject)
        if parsed is None:
            before = self._known.pop(key, None)
        else:
            before, self._known[key] = self._known.get(key), parsed
        self._tell(before, parsed)

    def _tell(self, before: T | None, now: T | None) -> None:
        if before == now:
            return
        if before is not None and now is not None and self._is_detail(before, now):
            self._on_detail()
        else:
            self._on_change()

    def _is_old(self, kind: str, key: str, metadata: Object) -> bool:
        """Tell whether an answer has shown more than this change does."""
        if metadata["uid"] in self._dropped:
            if kind == "DELETED":
                self._dropped.discard(metadata["uid"])
            return True
        if key not in self._ahead:
            return False
        if int(metadata["resourceVersion"]) <= self._ahead[key] and kind != "DELETED":
            return True
        del self._ahead[key]
        return False

    def _parsed(self, key: str, subject: Object) -> T | None:
        try:
            return self._parse(subject)
        except (
            *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
            *(RecursionError, RunaiError),
        ):
            LOG.exception("%s: %s cannot be read and is left out", self._path, key)
            return None
