"""An odd answer in the hub's place counts as an absent hub.

A proxy's own page is such an answer. It ends no session or workload.
"""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from runai.hub_service.wire.errors import Unavailable

MALFORMED_REPLIES = {
    "a page": ("<html>Log in</html>", "text/html"),
    "an object": ('{"message": "moved"}', "application/json"),
    "names alone": ('["ana", "bo"]', "application/json"),
    "users without names": ('[{"servers": {}}]', "application/json"),
    "a number": ("7", "application/json"),
}


@pytest.mark.parametrize(("text", "kind"), MALFORMED_REPLIES.values(), ids=MALFORMED_REPLIES)
async def test_malformed_hub_user_list_raises_unavailable(make_authenticator, text, kind):
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=kind)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    async with TestServer(app) as server:
        with pytest.raises(Unavailable):
            await make_authenticator(str(server.make_url("/hub/api"))).servers()
