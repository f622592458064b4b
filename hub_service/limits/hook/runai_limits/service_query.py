"""Ask the service about this workload, for a second at most: a program must run without it.

Knows the variables that name service, workload and token. Called by `notebook` and `grant`.
"""

from __future__ import annotations

from .after_import import swallowed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

WITHIN_S = 1.0
"""Without what the service knows rather than late."""


def ask(environ: Mapping[str, str], what: str = "") -> dict[str, Any]:
    """Return what the service says of this workload now; nothing if it does not in time.

    `what` is a part of it ("/environment"); a refusal is told by its stable `code`.
    """
    from threading import Thread  # noqa: PLC0415  only who asks pays for it

    answer: dict[str, Any] = {}
    asking = Thread(target=swallowed, args=("asking", _ask, environ, what, answer), daemon=True)
    asking.start()
    asking.join(WITHIN_S)
    return {} if asking.is_alive() else answer


def _ask(environ: Mapping[str, str], what: str, answer: dict[str, Any]) -> None:
    import json  # noqa: PLC0415
    from urllib.error import HTTPError  # noqa: PLC0415
    from urllib.request import ProxyHandler, Request, build_opener  # noqa: PLC0415

    url, workload = environ.get("RUNAI_API_URL", ""), environ.get("RUNAI_WORKLOAD", "")
    token = environ.get("JUPYTERHUB_API_TOKEN", "")
    if not (url.startswith(("http://", "https://")) and workload and token):
        return
    headers = {"Authorization": f"Bearer {token}"}
    address = f"{url.rstrip('/')}/api/v1/workloads/{workload}{what}"
    request = Request(address, headers=headers)  # noqa: S310  http or https: see above
    # The service is near; a proxy for the world outside would not know it.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(request, timeout=WITHIN_S) as reply:
            answer.update(json.load(reply))
    except HTTPError as refused:
        with refused:
            answer.update(code=json.load(refused).get("code", ""))
