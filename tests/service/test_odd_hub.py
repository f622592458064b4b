"""What answers in the hub's place, such as a proxy with a page of its own, ends nothing of ours."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from runai.hub_service.api.hub_auth import HubAuthenticator
from runai.hub_service.config import Config
from runai.hub_service.errors import Unavailable

ODD = {
    "a page": ("<html>Log in</html>", "text/html"),
    "an object": ('{"message": "moved"}', "application/json"),
    "names alone": ('["ana", "bo"]', "application/json"),
    "users without names": ('[{"servers": {}}]', "application/json"),
    "a number": ("7", "application/json"),
}


@pytest.mark.parametrize(("text", "kind"), ODD.values(), ids=ODD)
async def test_an_answer_that_is_no_list_of_users_is_a_hub_that_is_away(text: str, kind: str):
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=kind)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    async with TestServer(app) as server:
        settings: Any = Config.from_environment(
            {
                "RUNAI_DATA_DIR": "/unused",
                "RUNAI_HUB_TOKEN": "unused",
                "JUPYTERHUB_API_URL": str(server.make_url("/hub/api")),
                "JUPYTERHUB_API_TOKEN": "of-ours",
            }
        ).hub
        hub = HubAuthenticator(settings, prefix="/services/runai/", secret="unused")
        try:
            with pytest.raises(Unavailable):
                await hub.servers()
        finally:
            await hub.close()
