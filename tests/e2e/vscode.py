"""VS Code's side of a notebook, around a real kernel: its own widget manager in Chromium.

VS Code itself and its Jupyter extension cannot be installed from npm or PyPI. Its widget renderer
can: `@vscode/jupyter-ipywidgets8`, which the extension runs in the notebook's web view. The page
here has another origin than JupyterHub and may send requests to its own host only; the test
forwards its messages to the kernel, as the extension does.
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
REQUIREJS = CACHE / "requirejs-2.3.8.js"
NBEXTENSIONS = Path(sys.prefix) / "share" / "jupyter" / "nbextensions"
HOST_SCRIPT = Path(__file__).with_name("vscode_host.js")
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:;"
    " style-src 'self' 'unsafe-inline'; img-src data:; font-src data:; connect-src 'none'"
)
PAGE_HTML = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A notebook</title>
<script src="/require.js"></script><script type="module" src="/vscode_host.js"></script></head>
<body class="vscode-dark" style="--vscode-foreground: #ccc; --vscode-editor-background: #1f1f1f;
--vscode-descriptionForeground: #9d9d9d; background: #1f1f1f"><div id="output"></div></body></html>
"""


def why_no_vscode_widgets() -> str:
    """Return the reason why VS Code's widget manager is missing; "" if it is installed."""
    return why_not_fetched(
        "@vscode/jupyter-ipywidgets8", "1.0.9", "dist/ipywidgets.js", WIDGETS
    ) or why_not_fetched("requirejs", "2.3.8", "require.js", REQUIREJS)


class _Files(SimpleHTTPRequestHandler):
    """Server of the page, its three scripts, and the scripts of this Python's widgets."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files = {
            "/ipywidgets.js": WIDGETS,
            "/require.js": REQUIREJS,
            "/vscode_host.js": HOST_SCRIPT,
        }
        if path.startswith("/nbextensions/") and ".." not in path:
            files[path] = NBEXTENSIONS / path.removeprefix("/nbextensions/")
        known = path == "/" or (path in files and files[path].is_file())
        body = (PAGE_HTML if path == "/" else files[path].read_bytes()) if known else b""
        self.send_response(200 if known else 404)
        kind = "text/html" if path == "/" else "text/javascript"
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name
        """Log nothing."""


@contextmanager
def host_page() -> Iterator[str]:
    """Serve the page; yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Files) as server:
        serving = threading.Thread(target=partial(server.serve_forever, 0.05), daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        serving.join()


class Notebook:
    """A page and a kernel; `forward_messages` forwards the messages between them."""

    def __init__(self, page: Page, kernel: BlockingKernelClient) -> None:
        self.page, self.kernel = page, kernel
        self._outgoing: list[dict[str, Any]] = []
        self.texts: list[str] = []
        """Displayed results as text, as a front end without widgets shows them."""

        page.expose_function("toKernel", self._queue_message)

    def _queue_message(self, message: dict[str, Any]) -> None:
        self._outgoing.append(message)

    def run(self, code: str) -> None:
        """Start to run a cell."""
        self.kernel.execute(code)

    def forward_messages(self) -> None:
        """Forward all pending messages to the other side."""
        while True:
            try:
                received = self.kernel.get_iopub_msg(timeout=0)
            except queue.Empty:
                break
            kind, content = received["msg_type"], received["content"]
            assert kind != "error", "\n".join(content["traceback"])
            if text := content.get("data", {}).get("text/plain"):
                self.texts.append(text)
            message = {"type": kind, "content": content, "metadata": received["metadata"]}
            message["parent"] = received["parent_header"].get("msg_id", "")
            if kind in {"comm_open", "comm_msg", "display_data", "execute_result"}:
                self.page.evaluate("message => window.fromKernel(message)", message)
        outgoing, self._outgoing[:] = list(self._outgoing), []
        for request in outgoing:
            message = self.kernel.session.msg(request["type"], request["content"])
            self.kernel.shell_channel.send(message)


@contextmanager
def notebook(page: Page, environ: Mapping[str, str]) -> Iterator[Notebook]:
    """Open a notebook with a new kernel in this environment."""
    with host_page() as address:
        manager, kernel = start_new_kernel(startup_timeout=200, env={**os.environ, **environ})
        try:
            opened = Notebook(page, kernel)
            page.goto(address)
            page.locator("body[data-ready]").wait_for(state="attached")
            yield opened
        finally:
            kernel.stop_channels()
            manager.shutdown_kernel(now=True)
