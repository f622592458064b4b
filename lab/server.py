"""Relay of the platform in the user's notebook server, for the pages of JupyterLab.

A page names a verb of a fixed list and a workload, never an address of the platform. The token
stays here. The scripts are public: they hold no data, and JupyterHub answers a script's request
with a login cookie by a redirect.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from jupyter_server.base.handlers import APIHandler, FileFindHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import ensure_async, url_path_join
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from runai.hub_service.client import AsyncClient
from runai.hub_service.client.actions import action_answer, action_call
from runai.hub_service.client.calls import WorkloadIdentity
from runai.hub_service.client.log_lines import OpenLines, last_state
from runai.hub_service.wire.errors import InvalidRequest, RunaiError
from runai.hub_service.wire.program_schemas import LogLine
from runai.hub_service.wire.schemas import FINISHED, WorkloadDetail
from runai.lab.feed import Feed
from runai.lab.run_file import executed_copy, path_below, submit_file

MAX_BODY: Final = 1 << 20
MAX_LINE: Final = 4000
"""Characters of one line of a log."""
MAX_LINES: Final = 5000
"""Lines of one frame: of a job that prints more, the newest."""
LOG_TAIL: Final = 2000
"""Lines of a log from before the page opened it."""
BATCH_S: Final = 0.1
AGAIN_S: Final = 1.0
SCRIPTS: Final = [
    str(Path(__file__).with_name("page")),
    str(Path(__file__).parents[1] / "widgets"),  # of the panel, which the side bar shows
]


def add_handlers(app: web.Application) -> None:
    """Add the relay's routes to a notebook server."""
    base, feed = url_path_join(app.settings["base_url"], "runai", "lab"), Feed()
    app.add_handlers(
        ".*$",
        [
            (url_path_join(base, "live"), _LiveSocket, {"feed": feed}),
            (url_path_join(base, "log"), _LogSocket),
            (url_path_join(base, "act"), _ActHandler),
            (url_path_join(base, "run"), _RunHandler),
            (url_path_join(base, r"([a-z_]+\.(?:js|css))"), _Scripts, {"path": SCRIPTS}),
        ],
    )


class _Scripts(FileFindHandler):
    """Handler of the scripts; the keys of its cache are names, so it has one of its own."""

    _static_paths: ClassVar[dict[str, str]] = {}  # type: ignore[misc]


class _Socket(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """A websocket for the server's user alone, which keeps no idle server alive."""

    _track_activity = False

    async def get(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - of tornado
        """Open the socket.

        Raises:
            web.HTTPError: the reader may not use the server's kernels (403).
        """
        # Not by a decorator: the one for sockets is younger than the lowest jupyter_server.
        await _check_allowed(self)
        await super().get(*args, **kwargs)

    def on_message(self, message: str | bytes) -> None:
        """Ignore a message: pages ask by requests."""

    def send(self, frame: str) -> None:
        """Send a frame, unless the page is gone."""
        try:
            self.write_message(frame)
        except WebSocketClosedError:
            self.on_close()


async def _check_allowed(handler: JupyterHandler) -> None:
    """Check that a reader may do what the server's kernels may.

    Raises:
        web.HTTPError: the reader is nobody, or the server's authorizer refuses (403).
    """
    user = handler.current_user
    if user is None or not await ensure_async(
        handler.authorizer.is_authorized(handler, user, "execute", "kernels")
    ):
        raise web.HTTPError(403)


class _LiveSocket(_Socket):
    """The frames of status item and side panel."""

    def initialize(self, feed: Feed) -> None:
        """Take the feed that all windows share."""
        self._feed = feed

    def open(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - of tornado
        """Begin with the last frame."""
        super().open(*args, **kwargs)
        self._feed.add(self.send)

    def on_close(self) -> None:
        """End the upstream stream with the last window."""
        self._feed.remove(self.send)


class _LogSocket(_Socket):
    """The output of a workload, across its pauses, until it ends or the page is closed."""

    def open(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - of tornado
        """Follow the output in a task: meanwhile the socket reads pings and its end."""
        super().open(*args, **kwargs)
        workload = WorkloadIdentity(self.get_argument("workload"), self.get_argument("uid", ""))
        self._task = asyncio.ensure_future(self._follow(workload))

    def on_close(self) -> None:
        """End the upstream stream."""
        self._task.cancel()

    async def _follow(self, workload: WorkloadIdentity) -> None:
        """Send lines until the workload has ended; a stream that breaks off begins again."""
        with suppress(WebSocketClosedError):
            try:
                async with AsyncClient.discover() as client:
                    detail = await client.workload(workload)
                    while True:
                        is_over = detail.state in FINISHED
                        await self._send_lines(client, detail, follow=not is_over)
                        detail = await client.workload(workload)
                        if detail.state in FINISHED:
                            break
                        await asyncio.sleep(AGAIN_S)
                await self._write(ended=detail.state.replace("_", " "))
            except RunaiError as error:
                await self._write(error=str(error))

    async def _send_lines(
        self, client: AsyncClient, detail: WorkloadDetail, *, follow: bool
    ) -> None:
        """Send the last lines, then the following ones, a tenth of a second's at a time."""
        several, unfinished = len(detail.workers) > 1, OpenLines()
        whole: deque[str] = deque(maxlen=MAX_LINES)
        is_first, sent_at = True, 0.0

        async def send() -> None:
            nonlocal is_first, sent_at
            states = [_text(line, several=several) for line in unfinished]
            await self._write(lines=[*whole], open=states, first=is_first)
            whole.clear()
            is_first, sent_at = False, time.monotonic()

        stream = client.logs(detail, tail=LOG_TAIL, follow=follow, parts=True)
        lines = stream.__aiter__()
        next_line = asyncio.ensure_future(anext(lines, None))
        try:
            while True:
                pause = (
                    max(0.0, sent_at + BATCH_S - time.monotonic()) if whole or is_first else None
                )
                await asyncio.wait({next_line}, timeout=pause)
                if next_line.done():
                    line = next_line.result()
                    if line is None:
                        break
                    whole.extend(_text(each, several=several) for each in unfinished.add(line))
                    next_line = asyncio.ensure_future(anext(lines, None))
                if time.monotonic() >= sent_at + BATCH_S:
                    await send()
        finally:
            next_line.cancel()
        await send()

    async def _write(self, **fields: object) -> None:
        """Send a frame; wait while the page reads more slowly than the job prints."""
        await self.write_message(json.dumps({"lines": [], "open": [], "first": False, **fields}))


def _text(line: LogLine, *, several: bool) -> str:
    text = last_state(line.text)[:MAX_LINE]
    return f"[{line.worker}] {text}" if several else text


class _RelayHandler(APIHandler):
    """A request of a page: a small JSON object."""

    async def content(self) -> Mapping[str, Any]:
        """Return the request's object.

        Raises:
            web.HTTPError: the reader is refused (403), or it is larger than 1 MiB (413), or no
                object (400).
        """
        await _check_allowed(self)
        if len(self.request.body) > MAX_BODY:
            raise web.HTTPError(413)
        content = self.get_json_body()
        if not isinstance(content, dict):
            raise web.HTTPError(400, "A JSON object is expected.")
        return content


class _ActHandler(_RelayHandler):
    """Buttons: a verb of the list, and a workload."""

    @web.authenticated
    async def post(self) -> None:
        """Carry out a button's action; answer its error, or "" and a description's facts."""
        content = await self.content()
        # Details that a page reads again by itself are no activity.
        self._track_activity = content.get("verb") not in {"describe", "paths"}
        try:
            if content.get("verb") == "paths":
                self.finish(await self._paths(content))
                return
            call = action_call(content)
            if call is None:
                raise InvalidRequest(f"There is no action {content.get('verb')!r}.")
            async with AsyncClient.discover() as client:
                self.finish(action_answer(content, result=await client.transport.send(call)))
        except RunaiError as error:
            self.finish(action_answer(content, error=str(error)))

    async def _paths(self, content: Mapping[str, Any]) -> dict[str, str]:
        """Return a workload's checkpoint folder, and two paths below the server's root.

        `folder` is that of the checkpoints, `copy` that of an executed notebook; "" for what lies
        elsewhere or is missing.
        """
        workload = WorkloadIdentity(str(content.get("workload")), str(content.get("uid", "")))
        async with AsyncClient.discover() as client:
            detail = await client.workload(workload)
        root = _root(self.settings)
        copy, hidden = executed_copy(detail), self.contents_manager.allow_hidden
        return {
            "error": "",
            "checkpoints": detail.checkpoint_dir,
            "folder": path_below(root, detail.checkpoint_dir, Path.is_dir, hidden=hidden),
            "copy": path_below(root, copy, Path.is_file, hidden=hidden),
        }


class _RunHandler(_RelayHandler):
    """The form *Run as a GPU Job…*."""

    @web.authenticated
    async def post(self) -> None:
        """Submit a file as a job, or only say what would happen."""
        content = await self.content()
        try:
            async with AsyncClient.discover() as client:
                self.finish(await submit_file(client, _root(self.settings), content))
        except RunaiError as error:
            self.finish({"error": str(error)})


def _root(settings: Mapping[str, Any]) -> Path:
    return Path(settings["server_root_dir"]).expanduser()
