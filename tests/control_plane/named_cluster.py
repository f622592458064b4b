"""An existing cluster, named by a context of the user's kubeconfig; it is not started or stopped.

    with NamedCluster("kind-lab") as cluster:
        cluster.request("GET", "/api/v1/nodes")

`kubectl proxy` makes the calls, so every login method of the user's kubectl works here too; it
listens at a socket that only this user can open. The current context is never used. For
tests/own_cluster.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx

from control_plane.calls import Calls
from control_plane.programs import find_program
from waiting import eventually

CONTEXT = "RUNAI_CLUSTER_CONTEXT"
"""The environment variable with the context's name."""
PROXY_TIMEOUT_S = 60


def why_no_cluster() -> str:
    """Return why no existing cluster can be used, or ""."""
    if not os.environ.get(CONTEXT):
        return f"no cluster is named (make test-cluster {CONTEXT}=…)"
    missing = [name for name in ("helm", "kubectl") if find_program(name) is None]
    return f"not found: {', '.join(missing)}" if missing else ""


class NamedCluster(Calls):
    """An existing cluster, for as long as a `with` lasts."""

    def __init__(self, context: str) -> None:
        """Create the client; it makes no call before `with`."""
        self._context = context
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            RuntimeError: there is no such context; the message is kubectl's.
        """
        with self._stack:
            folder = tempfile.TemporaryDirectory(prefix="cluster-")  # no other user can read it
            self.folder = Path(self._stack.enter_context(folder))
            self.kubeconfig = self.folder / "kubeconfig"
            self.kubeconfig.write_text(self._context_config())
            self._http = self._stack.enter_context(self._proxy())
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._stack.close()

    @property
    def home(self) -> Path:
        """Return this user's home: login plugins may need it."""
        return Path.home()

    def _context_config(self) -> str:
        view = ["config", "view", "--minify", "--flatten", "--raw", "--context", self._context]
        result = subprocess.run(
            [str(find_program("kubectl")), *view], text=True, capture_output=True, check=False
        )
        if result.returncode:
            raise RuntimeError(f"{CONTEXT}={self._context}: {result.stderr.strip()}")
        return result.stdout

    def _proxy(self) -> httpx.Client:
        socket = self.folder / "proxy.sock"
        command = [str(find_program("kubectl")), "proxy", "--unix-socket", str(socket)]
        proxy = subprocess.Popen(
            command,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self._stack.callback(proxy.wait)
        self._stack.callback(proxy.kill)
        eventually(socket.exists, within=PROXY_TIMEOUT_S, what="kubectl proxy listens")
        transport = httpx.HTTPTransport(uds=str(socket))
        return httpx.Client(base_url="http://localhost", transport=transport, timeout=90)
