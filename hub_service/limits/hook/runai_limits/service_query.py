"""Query of the service about this workload, for one second at most.

Programs must run without the service, so errors and timeouts yield an empty answer.
"""

from __future__ import annotations

from .after_import import swallowed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

WITHIN_S = 1.0
"""Longest wait for the answer; the program continues without it."""


def query_service(environ: Mapping[str, str], subpath: str = "") -> dict[str, Any]:
    """Return the service's current data about this workload; {} without an answer in time.

    `subpath` selects a part ("/environment"); a refusal has its stable error code under "code".
    """
    from threading import Thread  # noqa: PLC0415  needed for queries only

    answer: dict[str, Any] = {}
    query = Thread(
        target=swallowed, args=("asking", _query_service, environ, subpath, answer), daemon=True
    )
    query.start()
    query.join(WITHIN_S)
    return {} if query.is_alive() else answer


def _query_service(environ: Mapping[str, str], subpath: str, answer: dict[str, Any]) -> None:
    """Add the service's answer to `answer`; of a refusal only its code."""
    import json  # noqa: PLC0415
    from urllib.error import HTTPError  # noqa: PLC0415
    from urllib.request import ProxyHandler, Request, build_opener  # noqa: PLC0415

    url, workload = environ.get("RUNAI_API_URL", ""), environ.get("RUNAI_WORKLOAD", "")
    token = environ.get("JUPYTERHUB_API_TOKEN", "")
    if not (url.startswith(("http://", "https://")) and workload and token):
        return
    headers = {"Authorization": f"Bearer {token}"}
    address = f"{url.rstrip('/')}/api/v1/workloads/{workload}{subpath}"
    request = Request(address, headers=headers)  # noqa: S310  http or https: see above
    # No proxy: the service is on the local network, unknown to a proxy for the internet.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(request, timeout=WITHIN_S) as reply:
            answer.update(json.load(reply))
    except HTTPError as refused:
        with refused:
            answer.update(code=json.load(refused).get("code", ""))
