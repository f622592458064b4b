"""Informer for one kind of object: list once, then watch until cancelled.

A watch resumes where it broke. On 410 (the last version seen is too old) the list is read again.
Objects are parsed on arrival, and only the parsed form is cached.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from random import SystemRandom
from typing import Generic, NoReturn, TypeVar

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object, key_of
from runai.hub_service.wire.errors import RunaiError

LOG = logging.getLogger("runai.kubernetes")

T = TypeVar("T")

WATCH_SECONDS = 300
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 10.0


class Informer(Generic[T]):
    """Cache of the objects behind one API path, by `namespace/name`."""

    def __init__(
        self,
        api: Api,
        path: str,
        parse: Callable[[Object], T | None],
        on_change: Callable[[], None],
        *,
        is_detail: Callable[[T, T], bool] = lambda _before, _now: False,
        on_detail: Callable[[], None] = lambda: None,
        if_forbidden: str = "",
        **query: str,
    ) -> None:
        """Begin empty; leave out objects for which `parse` returns None or fails.

        Failures are logged. A change of one object for which `is_detail` is True calls `on_detail`
        instead of `on_change`. `if_forbidden` says in the log what is disabled while we lack the
        right to read these objects: the cache is empty until the right is granted. If it is "",
        `listed` waits for the first list. Parameters of `query` that are "" are left out.
        """
        self._api = api
        self._path = path
        self._parse = parse
        self._on_change = on_change
        self._is_detail = is_detail
        self._on_detail = on_detail
        self._if_forbidden = if_forbidden
        self._query = {name: value for name, value in query.items() if value}
        self._objects: dict[str, T] = {}
        self._resource_version = ""
        """The resourceVersion of the last change; "" before the first list."""
        self._applied_versions: dict[str, int] = {}
        """Versions applied from answers but not yet seen in the watch, by key.

        Versions only grow (KEP-5504).
        """
        self._dropped: set[str] = set()
        """UIDs of deleted objects whose deletion the watch has not reported yet."""
        self._listed = asyncio.Event()
        self.lists = 0
        """Number of times the whole list was read."""

    @property
    def objects(self) -> Mapping[str, T]:
        """Return the cached objects by `namespace/name`; changes only while the caller awaits."""
        return self._objects

    async def listed(self) -> None:
        """Return when the first list has been read."""
        await self._listed.wait()

    def apply(self, found: Object, *, quietly: bool = False) -> None:
        """Apply an object from an answer before the watch reports it; skip older watch events.

        An answer that comes after the watch changes nothing: the watch has shown later versions
        already, or the deletion. Set `quietly` unless a user requested the change: then `on_change`
        is not called.
        """
        key, version = key_of(found), int(found["metadata"]["resourceVersion"])
        if version <= int(self._resource_version or 0):
            return
        self._applied_versions[key] = version
        if (parsed := self._parsed(key, found)) is not None:
            before, self._objects[key] = self._objects.get(key), parsed
            if not quietly:
                self._notify(before, parsed)

    def drop(self, key: str, uid: str) -> None:
        """Remove a deleted object before the watch reports the deletion."""
        self._dropped.add(uid)
        if self._objects.pop(key, None) is not None:
            self._on_change()

    def reset(self) -> None:
        """Clear the cache and list anew at the next `run`.

        Call it only while `run` is not active.
        """
        self._objects, self._resource_version = {}, ""
        self._applied_versions.clear()
        self._dropped.clear()
        self._listed.set()

    async def run(self) -> NoReturn:
        """List and watch until cancelled; reconnect whenever the API server is away."""
        pause = SHORTEST_PAUSE_S
        while True:
            before = self._resource_version
            try:
                if not self._resource_version:
                    await self._list()
                await self._watch()
            except ApiError as error:
                if error.status == 410:
                    self._resource_version = ""
                elif error.status == 403 and self._if_forbidden and not self.lists:
                    self._log_missing_right(error)
                elif not error.is_unanswered:
                    LOG.warning("%s: %s", self._path, error.message)
            if before != self._resource_version:
                pause = SHORTEST_PAUSE_S  # the watch made progress
            # All informers of all clients lose the server at once: random pauses spread their
            # return.
            await asyncio.sleep(pause * SystemRandom().uniform(0.5, 1))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _log_missing_right(self, error: ApiError) -> None:
        """Log the missing right once, and stop blocking on the first list.

        An earlier list is kept: a starting API server also refuses requests until it has loaded its
        roles.
        """
        if not self._listed.is_set():
            LOG.warning("%s: %s: %s; retrying", self._path, error.message, self._if_forbidden)
            self._listed.set()

    async def _list(self) -> None:
        """Replace the cache by the whole list, read page by page."""
        listed: dict[str, T] = {}
        version = ""
        async for page in self._api.pages(self._path, **self._query):
            version = page["metadata"]["resourceVersion"]
            for item in page["items"]:
                key = key_of(item)
                if (parsed := self._parsed(key, item)) is not None:
                    listed[key] = parsed
        self.lists += 1
        self._applied_versions.clear()
        self._dropped.clear()
        self._resource_version = version
        has_changed = listed != self._objects or not self._listed.is_set()
        self._objects = listed
        if has_changed:
            self._on_change()
        self._listed.set()

    async def _watch(self) -> None:
        """Apply watch events from the last version on, until the server ends the watch."""
        seconds = int(WATCH_SECONDS * SystemRandom().uniform(1, 2))
        query = {
            "resourceVersion": self._resource_version,
            "allowWatchBookmarks": "true",
            **self._query,
        }
        changes = self._api.watch(self._path, seconds=seconds, **query)
        async with contextlib.aclosing(changes):
            async for change in changes:
                self._handle_event(change)

    def _handle_event(self, change: Object) -> None:
        """Apply a watch event, and store its version.

        Raises:
            ApiError: the event is an error; with status 410 the list must be read again.
        """
        subject = change["object"]
        if change["type"] == "ERROR":
            raise ApiError(
                int(subject.get("code", 500)),
                str(subject.get("reason", "")),
                str(subject.get("message", "the watch failed")),
            )
        if change["type"] != "BOOKMARK":
            self._apply_event(change["type"], subject)
        self._resource_version = subject["metadata"]["resourceVersion"]

    def _apply_event(self, kind: str, subject: Object) -> None:
        """Update one object, unless an answer has already shown a newer version of it."""
        key, metadata, is_deletion = key_of(subject), subject["metadata"], kind == "DELETED"
        if metadata["uid"] in self._dropped:
            if is_deletion:
                self._dropped.discard(metadata["uid"])
            return
        if (
            key in self._applied_versions
            and int(metadata["resourceVersion"]) <= self._applied_versions[key]
            and not is_deletion
        ):
            return
        self._applied_versions.pop(key, None)
        parsed = None if is_deletion else self._parsed(key, subject)
        if parsed is None:
            before = self._objects.pop(key, None)
        else:
            before, self._objects[key] = self._objects.get(key), parsed
        self._notify(before, parsed)

    def _notify(self, before: T | None, now: T | None) -> None:
        if before == now:
            return
        if before is not None and now is not None and self._is_detail(before, now):
            self._on_detail()
        else:
            self._on_change()

    def _parsed(self, key: str, subject: Object) -> T | None:
        """Return the parsed object; None: it is left out, or cannot be read, which is logged."""
        try:
            return self._parse(subject)
        except (
            *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
            *(RecursionError, RunaiError),
        ):
            LOG.exception("%s: %s cannot be read and is left out", self._path, key)
            return None
