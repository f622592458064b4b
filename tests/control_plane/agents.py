"""Tokens of the node agents' pods."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from control_plane.objects import pod
from control_plane.plane import ControlPlane

RUNAI = "/api/v1/namespaces/runai"
NUMBERS = itertools.count(1)


@contextlib.contextmanager
def agent_token(
    plane: ControlPlane, node: str, *, audience: str = "runai", account: str = "runai-agent"
) -> Iterator[str]:
    """Yield the token of an agent's pod on a node, while that pod exists."""
    agent = pod(f"agent-{next(NUMBERS)}", 0, nodeName=node, schedulerName="default-scheduler")
    agent["spec"]["serviceAccountName"] = account
    metadata = plane.request("POST", f"{RUNAI}/pods", agent)["metadata"]
    bound_to = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
    token_request = {"spec": {"audiences": [audience], "boundObjectRef": bound_to}}
    try:
        path = f"{RUNAI}/serviceaccounts/{account}/token"
        yield plane.request("POST", path, token_request)["status"]["token"]
    finally:
        plane.request("DELETE", f"{RUNAI}/pods/{metadata['name']}", {"gracePeriodSeconds": 0})
