"""Notifier that watches the cluster and sends events to pages and channels.

Each channel has its own queue, so that a slow or broken one delays no other. Notifications beyond
its capacity are dropped and logged, without addresses and secrets.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from runai.hub_service.controller.idle.idle_watch import IdleNow
from runai.hub_service.controller.idle.idleness import IdleActionKind
from runai.hub_service.controller.notifications.channels import Channel, Undelivered
from runai.hub_service.controller.notifications.events import (
    NEVER_RAN,
    Kind,
    Notification,
    ObservedState,
    RecentNotifications,
    events_between,
    observe,
)
from runai.hub_service.model.changes import Broadcast
from runai.hub_service.model.cluster import Cluster
from runai.hub_service.model.records import (
    WorkloadId,
    WorkloadRecord,
    WorkloadState,
    killed_text,
    last_move,
)
from runai.hub_service.model.time_limits import WARNING, warning_text
from runai.hub_service.model.time_limits import warns_at as warns_at_of
from runai.hub_service.wire.errors import RunaiError

LOG = logging.getLogger("runai.notifications")

POLL_S = 5.0
"""Poll interval in seconds, since idleness does not trigger a change signal."""
RECORDS_AT_A_TIME = 1000
PAUSE_FACTOR = 10
"""Pause after each poll, as a multiple of its duration: many workloads mean some delay."""
QUEUE_SIZE = 1000
TRIES = 3
AGAIN_S = 10.0


class Notifier:
    """Sender of notifications about events from now on."""

    def __init__(
        self,
        cluster: Cluster,
        idle: Callable[[WorkloadId], IdleNow | None],
        recent: RecentNotifications,
        channels: Sequence[Channel],
        changes: Broadcast,
        *,
        clock: Callable[[], float] = time.time,
        again_s: float = AGAIN_S,
    ) -> None:
        self._cluster = cluster
        self._idle = idle
        self._recent = recent
        self._queues = [(channel, asyncio.Queue[Notification](QUEUE_SIZE)) for channel in channels]
        self._changes = changes
        self._clock = clock
        self._again_s = again_s
        self._version: int | None = None
        """Version of the workloads at the last poll; None before the first poll."""
        self._last_states: dict[WorkloadId, ObservedState] = {}
        self._active: dict[WorkloadId, WorkloadRecord] = {}
        """Workloads whose idleness may change without a change of their record."""

    async def run(self) -> None:
        """Poll and deliver, forever."""
        async with asyncio.TaskGroup() as tasks:
            for channel, queue in self._queues:
                tasks.create_task(self._deliver(channel, queue))
            while True:
                version = self._changes.version
                await asyncio.sleep(PAUSE_FACTOR * await self.poll())
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._changes.newer_than(version)

    async def poll(self) -> float:
        """Send the events since the last poll; the first poll only stores states.

        Return the duration of the poll in seconds.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        changes = await self._cluster.changes(self._version)
        changed = {record.id: record for record in changes.changed}
        removed = self._last_states.keys() - changed if changes.is_all else changes.removed
        for workload in removed:
            self._last_states.pop(workload, None)
            self._active.pop(workload, None)
        # Few of thousands change, and most wait for their first start or have finished.
        projects = {p.spec.name: p.spec for p in await self._cluster.projects()}
        candidates = self._active | changed
        for place, (workload, record) in enumerate(candidates.items()):
            if place % RECORDS_AT_A_TIME == 0:
                await asyncio.sleep(0)
            self._active.pop(workload, None)
            if record.state is WorkloadState.QUEUED and not record.attempts:
                self._last_states[workload] = NEVER_RAN
                continue
            if not record.state.finished:
                self._active[workload] = record
            last = self._last_states.get(workload)
            if last is not None and last.uid not in {"", record.uid}:
                last = None  # of an earlier workload of this name
            if last is not None and record.state.finished and last.state is record.state:
                continue  # no further events after the end
            idle = self._idle(workload)
            is_idle = idle is not None and idle.level not in {None, IdleActionKind.BADGE}
            warns_at = warns_at_of(record, projects.get(record.spec.project))
            ends_soon = warns_at is not None and self._clock() >= warns_at
            self._last_states[workload] = observe(
                record, last, is_idle=is_idle, ends_soon=ends_soon
            )
            if ends_soon and (last is None or not last.ends_soon):
                await self._warn_once(record)
            for kind in (
                events_between(last, self._last_states[workload]) if last is not None else ()
            ):
                self._enqueue(await self._build_notification(kind, record))
        self._version = changes.version
        return clock() - began

    async def _warn_once(self, record: WorkloadRecord) -> None:
        """Warn of the end of a workload's time once in a run, also if the service was restarted."""
        now, since = self._clock(), record.runs_since or 0.0
        with suppress(RunaiError):  # deleted since, or not writable now
            events = await self._cluster.history(record.id)
            if any(WARNING in e.text and e.at >= int(since) for e in events):
                return
            text = warning_text(record, now)
            await self._cluster.note(record.id, text)
            spec = record.spec
            self._enqueue(
                Notification(
                    now, "ends_soon", record.id, spec.project, spec.user, f"{record.id} {text}"
                )
            )

    async def _build_notification(self, kind: Kind, record: WorkloadRecord) -> Notification:
        """Build the sentence of an event, with the reason from the workload's history."""
        history_kind, sentence = _SENTENCES[kind]
        why = moved = ""
        with suppress(RunaiError):  # deleted since, or its history is not readable now
            events = await self._cluster.history(record.id)
            why = next((e.text for e in reversed(events) if e.kind == history_kind), "")
            if kind in {"paused", "resumed"}:
                moved = last_move(events)
        text = f"{record.id} was {moved}" if moved else sentence.format(record.id)
        text += f": {why}" if why and not moved else ""
        if record.killed and kind in {"paused", "timed_out", "failed"}:
            text += f"; {killed_text(record.spec)}"
        spec = record.spec
        return Notification(self._clock(), kind, record.id, spec.project, spec.user, text)

    def _enqueue(self, notification: Notification) -> None:
        """Add a notification to the recent ones, and to the queue of each channel."""
        self._recent.add(notification)
        for channel, queue in self._queues:
            try:
                queue.put_nowait(notification)
            except asyncio.QueueFull:
                LOG.warning("%s is too slow: a notification was dropped", channel.name)

    async def _deliver(self, channel: Channel, queue: asyncio.Queue[Notification]) -> None:
        """Send a channel's notifications, forever; retry each at most `TRIES` times."""
        while True:
            notification = await queue.get()
            for attempt in range(1, TRIES + 1):
                try:
                    await channel.send(notification)
                except Undelivered as error:
                    LOG.warning(
                        "%s: delivery failed, attempt %d of %d: %s",
                        channel.name,
                        attempt,
                        TRIES,
                        error,
                    )
                    if not error.worth_again:
                        break
                    await asyncio.sleep(self._again_s * attempt)
                else:
                    break


_SENTENCES: dict[Kind, tuple[str, str]] = {
    "paused": ("stopping", "{} was paused"),
    "resumed": ("starting", "{} runs again"),
    "failed": ("failed", "{} failed"),
    "timed_out": ("timed_out", "{} timed out"),
    "ends_soon": ("warning", "{} ends soon"),
    "idle": ("warning", "{} keeps no GPU busy"),
}
"""Kind of the history entry with details, and the sentence, for each kind of event."""
