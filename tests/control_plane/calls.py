"""A cluster's API and kubectl, called as the cluster's administrator.

`plane` starts a control plane for the tests; `named_cluster` uses an existing cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from control_plane.programs import find_program

WITHIN_S = 120


class ApiRefused(Exception):
    """An error reply of the API server, with its status and message."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the HTTP status beside the message."""
        super().__init__(f"{status}: {message}")
        self.status = status


class Calls:
    """Calls to any cluster; a subclass sets the address."""

    kubeconfig: Path
    folder: Path
    """Contents are deleted at the end of the tests."""
    _http: httpx.Client

    @property
    def home(self) -> Path:
        """Return the home directory for programs."""
        return self.folder

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
    ) -> Any:
        """Make one call as the cluster's administrator; return the reply.

        Raises:
            ApiRefused: the API server refuses.
        """
        content = None if body is None else json.dumps(body)
        reply = self._http.request(
            method, path, content=content, headers={"Content-Type": content_type}
        )
        if reply.is_error:
            try:
                message = reply.json().get("message", reply.text)
            except ValueError:
                message = reply.text
            raise ApiRefused(reply.status_code, message)
        try:
            return reply.json()
        except ValueError:
            return reply.text

    def request_existing(
        self, method: str, path: str, *content: Any, absent: Sequence[int] = (404,), **options: Any
    ) -> Any:
        """Make one call; return None if its object is gone: the status is in `absent`."""
        try:
            return self.request(method, path, *content, **options)
        except ApiRefused as refused:
            if refused.status not in absent:
                raise
            return None

    def lines(self, path: str) -> Iterator[str]:
        """Yield the lines of a reply as they come, as the administrator: a watch's events.

        Raises:
            ApiRefused: the API server refuses.
        """
        with self._http.stream("GET", path) as reply:
            if reply.is_error:
                reply.read()
                raise ApiRefused(reply.status_code, reply.text)
            yield from reply.iter_lines()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator; return its output.

        Raises:
            AssertionError: kubectl fails; the message is its output.
        """
        done = subprocess.run(
            [str(find_program("kubectl")), *arguments],
            input=stdin,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.home)},
            text=True,
            capture_output=True,
            check=False,
            timeout=WITHIN_S,
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout
