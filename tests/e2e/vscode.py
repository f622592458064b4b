"""VS Code's side of a notebook, around a real kernel: its own widget manager in Chromium.

VS Code itself and its Jupyter extension cannot be installed from npm or PyPI. What renders widgets
in it can: `@vscode/jupyter-ipywidgets8`, which the extension runs in the notebook's web view. The
page here is of another origin than JupyterHub, may ask no host but its own, and its messages to the
kernel are carried by the test as the extension carries them.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel
from playwright.sync_api import Page

from npm_packages import CACHE, why_not_fetched

WIDGETS = CACHE / "vscode-ipywidgets8-1.0.9.js"
REQUIRE = CACHE / "requirejs-2.3.8.js"
NBEXTENSIONS = Path(sys.prefix) / "share" / "jupyter" / "nbextensions"
SCRIPT = Path(__file__).with_name("vscode_host.js")
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:;"
    " style-src 'self' 'unsafe-inline'; img-src data:; font-src data:; connect-src 'none'"
)
PAGE = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A notebook</title>
<script src="/require.js"></script><script type="module" src="/vscode_host.js"></script></head>
<body class="vscode-dark" style="--vscode-foreground: #ccc; --vscode-editor-background: #1f1f1f;
--vscode-descriptionForeground: #9d9d9d; background: #1f1f1f"><div id="output"></div></body></html>
"""


def why_no_vscode_widgets() -> str:
    """Return why VS Code's widget manager cannot be had; "" when it is here."""
    return why_not_fetched(
        "@vscode/jupyter-ipywidgets8", "1.0.9", "dist/ipywidgets.js", WIDGETS
    ) or why_not_fetched("requirejs", "2.3.8", "require.js", REQUIRE)


class _Files(SimpleHTTPRequestHandler):
    """The page, its three scripts, and the scripts of widgets that are installed in this Python."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files = {"/ipywidgets.js": WIDGETS, "/require.js": REQUIRE, "/vscode_host.js": SCRIPT}
        if path.startswith("/nbextensions/") and ".." not in path:
            files[path] = NBEXTENSIONS / path.removeprefix("/nbextensions/")
        known = path == "/" or (path in files and files[path].is_file())
        body = (PAGE if path == "/" else files[path].read_bytes()) if known else b""
        self.send_response(200 if known else 404)
        kind = "text/html" if path == "/" else "text/javascript"
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name
        """Say nothing."""


@contextmanager
def host_page() -> Iterator[str]:
    """Serve the page; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Files) as server:
        serving = threading.Thread(target=partial(server.serve_forever, 0.05), daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        serving.join()


class Notebook:
    """A page and a kernel; `carry` brings what each has said to the other."""

    def __init__(self, page: Page, kernel: BlockingKernelClient) -> None:
        self.page, self.kernel = page, kernel
        self._said: list[dict[str, Any]] = []
        self.texts: list[str] = []
        """What was displayed, as text: what a front end shows that knows no widgets."""

        page.expose_function("toKernel", self._hear)

    def _hear(self, message: dict[str, Any]) -> None:
        self._said.append(message)

    def run(self, code: str) -> None:
        """Begin to run a cell."""
        self.kernel.execute(code)

    def carry(self) -> None:
        """Bring what was said until now to the other side."""
        while True:
            try:
                heard = self.kernel.get_iopub_msg(timeout=0)
            except queue.Empty:
                break
            kind, content = heard["msg_type"], heard["content"]
            assert kind != "error", "\n".join(content["traceback"])
            if text := content.get("data", {}).get("text/plain"):
                self.texts.append(text)
            message = {"type": kind, "content": content, "metadata": heard["metadata"]}
            message["parent"] = heard["parent_header"].get("msg_id", "")
            if kind in {"comm_open", "comm_msg", "display_data", "execute_result"}:
                self.page.evaluate("message => window.fromKernel(message)", message)
        said, self._said[:] = list(self._said), []
        for each in said:
            message = self.kernel.session.msg(each["type"], each["content"])
            self.kernel.shell_channel.send(message)


@contextmanager
def notebook(page: Page, environ: Mapping[str, str]) -> Iterator[Notebook]:
    """Open a notebook with a new kernel of this environment."""
    with host_page() as address:
        manager, kernel = start_new_kernel(startup_timeout=200, env={**os.environ, **environ})
        try:
            here = Notebook(page, kernel)
            page.goto(address)
            page.locator("body[data-ready]").wait_for(state="attached")
            yield here
        finally:
            kernel.stop_channels()
            manager.shutdown_kernel(now=True)
