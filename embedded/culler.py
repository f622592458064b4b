"""The `cull_arbiter_hook` of jupyterhub-idle-culler: keeps servers that use their GPU.

The culler sees web traffic only. The hook protects a server if its session uses its GPU or its
owner keeps it; else the culler's limit applies. It runs in the culler's process, with RUNAI_API_URL
and RUNAI_HUB_TOKEN in its environment.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

from runai.hub_service.client import AsyncClient
from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.schemas import WorkloadView


async def cull_arbiter(
    *, inactive: timedelta, inactive_limit: float, server: Mapping[str, Any], **_more: object
) -> bool:
    """Return True if an idle server may be stopped."""
    if inactive.total_seconds() < inactive_limit:
        return False
    url, token = os.environ.get("RUNAI_API_URL", ""), os.environ.get("RUNAI_HUB_TOKEN", "")
    try:
        async with AsyncClient(url, token) as client:
            workloads = await client.workloads()
    except RunaiError:
        # The GPU may be in use. The culler calls the hook again later.
        return False
    return not any(_is_used(w) for w in workloads if _is_of(w, server))


def _is_used(workload: WorkloadView) -> bool:
    """Return True if a session's GPU is busy or its owner keeps it."""
    if workload.allocated == 0:
        return False
    return workload.idle is None or workload.idle.kept


def _is_of(workload: WorkloadView, server: Mapping[str, Any]) -> bool:
    """Return True if a session is this server, by its URL /user/NAME/ or /user/NAME/SERVER/."""
    _, _, rest = str(server.get("url", "")).partition("/user/")
    user = unquote(rest.split("/", 1)[0])
    of_server = workload.kind == "session" and not workload.state.startswith(
        ("ended", "failed", "timed_out")
    )
    return of_server and (workload.user, workload.server) == (user, server.get("name", ""))
