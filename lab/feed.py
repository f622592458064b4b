"""Frames for all windows of one notebook server, made from one upstream stream.

The stream is open while at least one window is visible. Frames hold nothing secret, are bounded,
and differ from one another.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from runai.hub_service.client import AsyncClient
from runai.hub_service.client.connection import ConnectionSource, find_connection
from runai.hub_service.client.status_line import StatusLine
from runai.hub_service.client.texts import own_line
from runai.hub_service.wire.errors import Forbidden, RunaiError, Unauthenticated
from runai.hub_service.wire.schemas import FINISHED, Overview, WhoAmI, WorkloadView

LOG: Final = logging.getLogger(__name__)

EVERY_S: Final = 2.0
"""Least seconds between two frames."""
PATIENCE_S: Final = 3.0
"""Seconds without the service until the windows say so."""
RETRY_S: Final = 3.0
LOGIN_CHECK_S: Final = 15.0
"""Seconds between two looks at the file of `runai login`, while nobody is logged in."""
MAX_FRAME: Final = 1 << 20
MAX_ROWS: Final = 200
"""Workloads of a frame that would be too large."""

NOT_THERE: Final = json.dumps({"absent": True})
"""Frame without a platform or a login: pages show nothing."""


class Feed:
    """The frames of one notebook server, for all its windows."""

    def __init__(
        self, environ: Mapping[str, str] = os.environ, *, every_s: float = EVERY_S
    ) -> None:
        """Read nothing until a window listens."""
        self._environ, self._every_s = environ, every_s
        self._listeners: set[Callable[[str], None]] = set()
        self._frame = ""
        self._task: asyncio.Task[None] | None = None

    def add(self, listener: Callable[[str], None]) -> None:
        """Pass the last frame and all later ones to a window."""
        self._listeners.add(listener)
        if self._frame:
            listener(self._frame)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    def remove(self, listener: Callable[[str], None]) -> None:
        """Forget a window; the last one ends the upstream stream."""
        self._listeners.discard(listener)
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task, self._frame = None, ""

    def _publish(self, frame: str) -> None:
        if frame != self._frame:
            self._frame = frame
            for listener in list(self._listeners):
                listener(frame)

    async def _run(self) -> None:
        """Read the platform's events, forever; again after each failure."""
        source = ConnectionSource(self._environ)
        while True:
            version = source.version()
            try:
                await self._read(source)
            except RunaiError as error:
                # A retry repairs neither a missing nor a refused login; a new login may.
                is_absent = error.code == "not_logged_in"
                self._publish(NOT_THERE if is_absent else _lost(str(error)))
                needs_login = isinstance(error, Unauthenticated | Forbidden)
                if not (is_absent or needs_login or error.code == "damaged_config"):
                    await asyncio.sleep(RETRY_S)
                    continue
            except Exception:
                LOG.exception("The GPU status cannot be shown")
                self._publish(_lost("The notebook server cannot show it; its log says why."))
                await asyncio.sleep(LOGIN_CHECK_S)
                continue
            while source.version() == version:  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(LOGIN_CHECK_S)

    async def _read(self, source: ConnectionSource) -> None:
        """Publish a frame after each event, at most one every `every_s` seconds."""
        found = find_connection(self._environ)
        async with AsyncClient(
            found.url,
            found.token,
            default_project=found.project,
            ca=found.ca,
            source=source,
            patience_s=PATIENCE_S,
        ) as client:
            caller = await client.whoami()
            make = await asyncio.to_thread(_frames)  # imports what draws: a second, once
            session = self._environ.get("RUNAI_WORKLOAD", "")
            latest = _Latest()

            async def receive() -> None:
                async for overview in client.events():
                    latest.put(overview)

            def frame(overview: Overview) -> str:
                return make(overview, caller, session)

            tasks = [asyncio.ensure_future(receive())]
            tasks.append(asyncio.ensure_future(self._send(latest, frame)))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # raises what ended it
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, latest: "_Latest", make: Callable[[Overview], str]) -> None:
        while True:
            self._publish(make(await latest.get()))
            await asyncio.sleep(self._every_s)


class _Latest:
    """The newest overview that was not sent yet."""

    def __init__(self) -> None:
        self._overview: Overview | None = None
        self._is_new = asyncio.Event()

    def put(self, overview: Overview) -> None:
        """Replace an overview that was not sent."""
        self._overview = overview
        self._is_new.set()

    async def get(self) -> Overview:
        """Return the newest overview, as soon as there is one."""
        await self._is_new.wait()
        self._is_new.clear()
        assert self._overview is not None
        return self._overview


def _lost(why: str) -> str:
    status = StatusLine("disconnected", why, "disconnected")
    return json.dumps({"lost": why, "status": status._asdict()})


def _frames() -> Callable[[Overview, WhoAmI, str], str]:
    """Import the panel's state, and return the function that makes a frame."""
    from runai.widgets.state import panel_state  # noqa: PLC0415 - only with a platform

    def frame(overview: Overview, caller: WhoAmI, session: str) -> str:
        marked = [project.name for project in overview.projects if project.may_submit]
        names = marked or caller.projects
        state = panel_state(overview, user=caller.name, projects=names, chart=None)
        own = next((view for view in overview.workloads if view.id == session), None)
        line = own_line(overview, user=caller.name, session=session)
        values: dict[str, Any] = {
            "user": caller.name,
            "status": line._asdict(),
            "banner": own and banner(own),
            "free": free_text(overview),
            "state": {**state, "at": 0},  # equal frames are not sent again
        }
        text = json.dumps(values)
        if len(text) > MAX_FRAME:
            state["workloads"] = state["workloads"][:MAX_ROWS]
            text = json.dumps({**values, "state": {**state, "at": 0}})
        return text

    return frame


def free_text(overview: Overview) -> str:
    """Return the GPUs that are free now."""
    devices = [d for node in overview.nodes for d in node.devices if d.healthy]
    free = round(sum(max(0.0, 1 - device.allocated) for device in devices), 3)
    whole = sum(device.allocated == 0 for device in devices)
    parts = "" if whole == free else f", {whole} of them whole"
    return f"{free:g} of {len(devices)} GPUs free{parts}"


def banner(view: WorkloadView) -> str:
    """Return why a session has no GPU, and what to do; "" while it has one."""
    wants = view.state not in FINISHED and (view.gpus or view.gpu_memory_mib)
    if view.allocated or not wants:
        return ""
    why = view.reason.text.rstrip(".") if view.reason else ""
    if view.released is not None:
        text = f"This session goes on without its GPU: {why}" if why else "Its GPU was released"
        return f"{text}. Get GPU back asks for it again; restart kernels that used it."
    start = view.expected_start.text if view.expected_start else ""
    return f"This session waits for its GPU: {'; '.join(filter(None, [why, start]))}."
