"""Relay of the platform in the user's notebook server, for the pages of JupyterLab.

A page names a verb of a fixed list and a workload, never an address of the platform. The token
stays here. The scripts are public: they hold no data, and JupyterHub answers a script's request
with a login cookie by a redirect.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jupyter_server.base.handlers import APIHandler, FileFindHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from runai.hub_service.client import AsyncClient
from runai.hub_service.client.actions import action_answer, action_call
from runai.hub_service.client.calls import WorkloadIdentity
from runai.hub_service.client.log_lines import OpenLines, last_state
from runai.hub_service.wire.errors import InvalidRequest, RunaiError
from runai.hub_service.wire.program_schemas import LogLine
from runai.lab.feed import Feed
from runai.lab.run_file import executed_copy, path_below, submit_file

MAX_BODY: Final = 1 << 20
MAX_LINE: Final = 4000
"""Characters of one line of a log."""
LOG_TAIL: Final = 2000
"""Lines of a log from before the page opened it."""
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
            (url_path_join(base, r"([a-z_]+\.(?:js|css))"), FileFindHandler, {"path": SCRIPTS}),
        ],
    )


class _Socket(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """A websocket for the server's user alone; it is no activity that keeps a server alive."""

    _track_activity = False

    async def get(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - of tornado
        """Open the socket.

        Raises:
            web.HTTPError: the reader is not the server's user (403).
        """
        # Not by a decorator: the one for sockets is younger than the lowest jupyter_server.
        if self.current_user is None:
            raise web.HTTPError(403)
        await super().get(*args, **kwargs)

    def on_message(self, message: str | bytes) -> None:
        """Ignore a message: pages ask by requests."""

    def send(self, frame: str) -> None:
        """Send a frame, unless the page is gone."""
        try:
            self.write_message(frame)
        except WebSocketClosedError:
            self.on_close()


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

    async def open(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - of tornado
        """Send whole lines, and the states of unfinished ones."""
        super().open(*args, **kwargs)
        self._is_open = True
        workload = WorkloadIdentity(self.get_argument("workload"), self.get_argument("uid", ""))
        unfinished = OpenLines()
        try:
            async with AsyncClient.discover() as client:
                detail = await client.workload(workload)
                several = len(detail.workers) > 1
                async for line in client.logs(workload, tail=LOG_TAIL, follow=True, parts=True):
                    if not self._is_open:
                        return
                    whole = [_text(each, several=several) for each in unfinished.add(line)]
                    states = [_text(each, several=several) for each in unfinished]
                    self.send(json.dumps({"lines": whole, "open": states}))
                state = (await client.workload(workload)).state
            self.send(json.dumps({"lines": [], "open": [], "ended": state.replace("_", " ")}))
        except RunaiError as error:
            self.send(json.dumps({"lines": [], "open": [], "error": str(error)}))

    def on_close(self) -> None:
        """End the stream at its next line."""
        self._is_open = False


def _text(line: LogLine, *, several: bool) -> str:
    text = last_state(line.text)[:MAX_LINE]
    return f"[{line.worker}] {text}" if several else text


class _RelayHandler(APIHandler):
    """A request of a page: a small JSON object."""

    def content(self) -> Mapping[str, Any]:
        """Return the request's object.

        Raises:
            web.HTTPError: it is larger than 1 MiB (413), or no object (400).
        """
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
        """Do what a button says; answer its error, or "" and a description's facts."""
        content = self.content()
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
        copy = executed_copy(detail)
        return {
            "error": "",
            "checkpoints": detail.checkpoint_dir,
            "folder": path_below(root, detail.checkpoint_dir, Path.is_dir),
            "copy": path_below(root, copy, Path.is_file),
        }


class _RunHandler(_RelayHandler):
    """The form *Run as a GPU Job…*."""

    @web.authenticated
    async def post(self) -> None:
        """Submit a file as a job, or only say what would happen."""
        content = self.content()
        try:
            async with AsyncClient.discover() as client:
                self.finish(await submit_file(client, _root(self.settings), content))
        except RunaiError as error:
            self.finish({"error": str(error)})


def _root(settings: Mapping[str, Any]) -> Path:
    return Path(settings["server_root_dir"]).expanduser()
