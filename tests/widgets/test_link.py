"""The kernel's link to a hub with a certificate of its own authority."""

from __future__ import annotations

from contextlib import closing

from control_plane.certificates import Authority
from overviews import overview
from runai.hub_service.client.connection import Connection
from runai.widgets.link import Link
from tls_hub import tls_hub


async def test_kernel_clients_trust_the_certificate_authority_of_the_login(tmp_path):
    authority = Authority()
    path = tmp_path / "ca.crt"
    path.write_bytes(authority.certificate)
    with tls_hub(authority.server(["hub"], ["127.0.0.1"]), tmp_path) as hub:
        link = Link(Connection(hub.url, "t", ca=str(path)))
        assert link.whoami().name == "ana"
        async with link.awaitable_client() as client:
            assert (await client.whoami()).name == "ana"
        with closing(link._events()) as events:
            assert next(events) == overview()
        link.close()
